// For scripts/docs.sh. A page that is opened as a file may not start a worker, in which the site's
// search runs: a hidden frame stands in for it. Its name tells Zensical not to load such a script
// from the network.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.scope = new Promise((resolve) => {
        frame.onload = () => {
          const scope = frame.contentWindow;
          // Copies, and later, as a worker gets them.
          scope.postMessage = (data) =>
            setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
          const script = scope.document.createElement("script");
          script.src = new URL(url, location.href);
          script.onload = () => resolve(scope);
          scope.document.head.append(script);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      const scope = await this.scope;
      const copy = scope.structuredClone(data);
      scope.dispatchEvent(new scope.MessageEvent("message", { data: copy }));
    }

    terminate() {}
  };
}
