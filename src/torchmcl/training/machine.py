import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torchmcl._utils.logs import muted
from torchmcl._utils.validation import plain_fields, validate_types
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

ENGINE = tuple(map(logging.getLogger, ("lightning.fabric", "lightning.pytorch")))
Precision = Literal["32", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Machine:
    """The hardware and precision of a training run.

    Args:
        accelerator: type of device: auto, cpu, cuda or mps
        devices: number of processes per node, one per device
        num_nodes: number of nodes; start the run on each node with torchrun
        strategy: how several processes divide the work: auto or ddp (each takes part of the examples) or members (each
            takes part of the members, which must not exchange features)
        precision: numerical precision: 32, bf16-mixed or 16-mixed
        compile: compile the ensemble with torch.compile
        lean: store the activations of only one member at a time, which saves memory
        workers: number of processes that load images of data sets that are too large for memory

    Raises:
        UsageError: If a value is out of range, or if lean and compile are combined.

    >>> Machine(devices=2, precision="bf16-mixed").strategy
    'auto'
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: Literal["auto", "ddp", "members"] = "auto"
    precision: Precision = "32"
    compile: bool = False
    lean: bool = False
    workers: int = 2

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types(vars(self), Machine)
        for name, minimum in (("devices", 1), ("num_nodes", 1), ("workers", 0)):
            if getattr(self, name) < minimum:
                raise UsageError(f"Expected {name} >= {minimum}, got {getattr(self, name)}.")
        if self.lean and self.compile:
            raise UsageError("Cannot combine lean with compile, which runs all members at once. Disable one of them.")
        if self.strategy == "members" and (self.lean or self.compile):
            raise UsageError("Cannot combine the strategy members with lean or compile. Disable them.")

    @property
    def member_parallel(self) -> bool:
        """Whether several processes train different members."""
        return self.strategy == "members" and self.devices * self.num_nodes > 1

    def build(self, *, verbose: bool = True) -> "Fabric":
        """Return a Lightning `Fabric`. Call `Fabric.launch` to start the processes.

        Raises:
            UsageError: If this machine does not support the accelerator, the number of devices or the precision.
        """
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy

        class Separate(DDPStrategy):
            """Processes that do not synchronise gradients."""

            def setup_module(self, module: Any) -> Any:
                return module

        plain = "ddp" if self.strategy == "ddp" else "auto"
        try:
            with warnings.catch_warnings(), muted(*ENGINE, when=not verbose):
                warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # raised as an error below
                fabric = Fabric(
                    accelerator=self.accelerator,
                    devices=self.devices,
                    num_nodes=self.num_nodes,
                    strategy=Separate() if self.member_parallel else plain,
                    precision="32-true" if self.precision == "32" else self.precision,
                )
        except (RuntimeError, ValueError) as problem:
            reason = " ".join(str(problem).split())
            raise UsageError(f"Cannot train with {self} on this machine: {reason}") from problem
        if self.precision == "16-mixed" and fabric.device.type == "cpu":
            raise UsageError("Precision 16-mixed needs a GPU. Use bf16-mixed or 32.")
        return fabric
