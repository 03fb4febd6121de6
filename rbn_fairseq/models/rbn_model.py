"""What all models of the plugin have in common: options, registration, checks, loading."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import (
    MODEL_DATACLASS_REGISTRY,
    BaseFairseqModel,
    register_model,
    register_model_architecture,
)
from fairseq.modules import FairseqDropout
from hydra.core.config_store import ConfigStore
from torch import Tensor

from rbn_fairseq.models.config import RBNConfig, config_class, fill_preset
from rbn_fairseq.models.kinds import ModelKind
from rbn_fairseq.models.linear import centre_weights
from rbn_fairseq.models.refusals import OF_MODEL, refuse
from rbn_fairseq.models.state_dicts import drop_length_bins, explain
from rbn_fairseq.models.unit_embeddings import set_unit_embeddings
from rbn_fairseq.norms import has_population_norm, on_registration

__all__ = ["RBNModel", "register"]

logger = logging.getLogger(__name__)

_Model = TypeVar("_Model", bound=type["RBNModel"])


def register(kind: ModelKind) -> Callable[[_Model], _Model]:
    """Tell fairseq and Hydra of a model, its architectures, and its options.

    Decorates the class, which is then the one of this kind.
    """

    def decorate(model: _Model) -> _Model:
        model.kind = kind
        register_model(kind.name, dataclass=config_class(kind))(model)
        for name, preset in kind.presets.items():
            if name != kind.name:  # registered with the model itself
                fill = partial(fill_preset, preset=preset)
                register_model_architecture(kind.name, name)(fill)
        on_registration(partial(_renew_options, model))
        return model

    return decorate


def _renew_options(model: type["RBNModel"]) -> None:
    """Tell fairseq and Hydra of the options of a norm that was registered."""
    # As in fairseq's register_model.
    name = model.kind.name
    MODEL_DATACLASS_REGISTRY[name] = config = config_class(model.kind)
    setattr(model, "__dataclass", config)  # noqa: B010 - its name is not mangled
    node = config()
    node._name = name
    ConfigStore.instance().store(name, node, group="model", provider="fairseq")


class RBNModel(BaseFairseqModel):
    """Mixin of a model in which every norm is a choice; put it before fairseq's own.

    Attributes:
        kind: of the model.
        cfg: fairseq's sizes, and the norms.
    """

    kind: ClassVar[ModelKind]
    cfg: RBNConfig

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the model to fairseq's parser."""
        gen_parser_from_dataclass(parser, config_class(cls.kind)(), with_prefix="")

    def finish(self, task: Any) -> None:
        """End the building: weights behind ``mabn``, embeddings, checks, warnings.

        Raises:
            ValueError: for an option that does not go with the norms.
        """
        centre_weights(self)
        for part in self.modules():
            if isinstance(part, FairseqDropout):  # --retain-dropout-modules has fairseq's names
                part.module_name = part.module_name.removeprefix("RBN")
        refuse(OF_MODEL, self.cfg, self)
        if self.cfg.norms.unit_embeddings:
            set_unit_embeddings(self)
        self.warn(task)

    def warn(self, task: Any) -> None:
        """Warn of batch statistics in the decoder, and of a task that does not maintain them."""
        if "decoder" in self.kind.sides and has_population_norm(self.decoder):
            logger.warning(
                "Norms with batch statistics in the decoder: in training, they let a position see "
                "later target tokens. Generation uses running statistics and leaks nothing."
            )
        if has_population_norm(self) and not getattr(task, "keeps_statistics", False):
            logger.warning(
                "This task does not maintain running statistics: dropped updates move them, "
                "processes do not agree on them, no bins of lengths are cut, TID is not measured, "
                "and modes that they do not go with are not refused. Use --task %s.",
                self.kind.task,
            )

    def nll(self, sample: dict[str, Any], padding: int) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihood of a batch, summed, in nats, and of how many targets.

        Teacher forcing, without label smoothing.

        Args:
            sample: fairseq's batch, on the model's device.
            padding: the value in targets that is none.
        """
        output = self(**sample["net_input"])
        target = self.get_targets(sample, output)  # (...)
        # An adaptive softmax computes the clusters of these targets alone.
        known = {"target": target}
        logs = self.get_normalized_probs(output, log_probs=True, sample=known)  # (..., V)
        real = target.ne(padding)
        each = logs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return -each[real].double().sum(), real.sum()

    def load_state_dict(
        self,
        state_dict: dict[str, Tensor],
        strict: bool = True,
        model_cfg: Any = None,
        args: Any = None,
    ) -> Any:
        """Load weights and population statistics, as fairseq does.

        Without bins of sentence lengths it takes, of a model with them, the statistics of all
        lengths.

        Raises:
            ValueError: if the weights belong to dictionaries of other sizes, or to norms with other
                population statistics.
        """
        expected = self.state_dict()
        state_dict = drop_length_bins(expected, state_dict)
        # fairseq's moving average (--store-ema) loads states without versions; fairseq would take
        # them for those of old models, which have no final norms, and drop this model's.
        versions = (f"{side}.version" for side in self.kind.sides)
        state_dict = {name: expected[name] for name in versions} | state_dict
        try:
            return super().load_state_dict(state_dict, strict)
        except RuntimeError as error:
            message = explain(expected, state_dict, self.kind.task)
            if message is None:
                raise
            raise ValueError(message) from error
