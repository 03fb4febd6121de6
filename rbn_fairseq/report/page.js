"use strict";

// A click on a figure, or Enter, shows it as large as the window allows; Escape or a click closes it.
const dialog = document.createElement("dialog");
dialog.addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => dialog.replaceChildren());
document.body.append(dialog);

for (const image of document.querySelectorAll(".drawing img")) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("aria-label", `Enlarge ${image.alt}`);
  image.replaceWith(button);
  button.append(image);
  button.addEventListener("click", () => {
    dialog.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight);
    dialog.style.setProperty("--own", image.naturalWidth);
    dialog.setAttribute("aria-label", image.alt);
    const close = document.createElement("button");
    close.textContent = "Close";
    dialog.replaceChildren(close, image.cloneNode());
    dialog.showModal();
  });
}
