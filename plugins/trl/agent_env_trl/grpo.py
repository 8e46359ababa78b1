"""``GRPOTrainer``, except that a run that is resumed sees the rows that come next. Imports TRL."""

from __future__ import annotations

from typing import Any

from trl import GRPOTrainer


class ResumableGRPOTrainer(GRPOTrainer):
    """A ``GRPOTrainer`` whose order of rows is a matter of the seed and the epoch alone.

    TRL shuffles the rows anew in each epoch, with one generator that it seeds when training starts. A resumed run skips
    the epochs that are done, and would get the order of the first one again. transformers tells a sampler that has
    ``set_epoch`` which epoch begins; so here it has. The first epoch's order is TRL's.
    """

    def _get_train_sampler(self, *arguments: Any, **keywords: Any) -> Any:
        sampler: Any = super()._get_train_sampler(*arguments, **keywords)
        generator = getattr(sampler, "generator", None)  # none where the rows aren't shuffled
        if generator is not None:
            sampler.set_epoch = lambda epoch: generator.manual_seed(self.args.seed + epoch)
        return sampler
