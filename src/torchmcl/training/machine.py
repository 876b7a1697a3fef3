import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torchmcl._utils.logs import muted
from torchmcl._utils.validation import plain_fields, validate_types
from torchmcl.errors import UsageError

if TYPE_CHECKING:
    from lightning.fabric import Fabric

ENGINE = tuple(map(logging.getLogger, ("lightning.fabric", "lightning.pytorch")))
Precision = Literal["32", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class Machine:
    """What training runs on.

    Args:
        accelerator: auto, cpu, cuda or mps
        devices: how many processes a node, one a device
        num_nodes: how many nodes; start them with torchrun
        strategy: auto, or ddp
        precision: 32, bf16-mixed or 16-mixed
        compile: compile the ensemble with torch.compile
        lean: hold the activations of one member at a time, for more members or larger batches in the same memory
        workers: processes that read images of sets too large for memory
    """

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Precision = "32"
    compile: bool = False
    lean: bool = False
    workers: int = 2

    def __post_init__(self) -> None:
        plain_fields(self)
        validate_types(vars(self), Machine)
        if self.devices < 1 or self.num_nodes < 1 or self.workers < 0:
            raise UsageError(
                "Expected at least 1 device, 1 node and 0 workers, "
                f"got {self.devices}, {self.num_nodes} and {self.workers}."
            )
        if self.lean and self.compile:
            raise UsageError("Expected lean or compile, got both: what is compiled answers for all members at once.")

    def build(self, *, verbose: bool = True) -> "Fabric":
        """The engine; `launch` then starts the processes, and each goes on from there with its own rank."""
        from lightning.fabric import Fabric

        try:
            with warnings.catch_warnings(), muted(*ENGINE, when=not verbose):
                warnings.filterwarnings("ignore", message=".*fp16 is not supported on CPU")  # said below, as an error
                fabric = Fabric(
                    accelerator=self.accelerator,
                    devices=self.devices,
                    num_nodes=self.num_nodes,
                    strategy=self.strategy,
                    precision="32-true" if self.precision == "32" else self.precision,
                )
        except (RuntimeError, ValueError) as problem:
            raise UsageError(f"Expected a machine with {self}; this one has not: {_line(problem)}") from problem
        if self.precision == "16-mixed" and fabric.device.type == "cpu":
            raise UsageError("Expected a GPU for precision 16-mixed, got a CPU. Use bf16-mixed or 32.")
        return fabric


def _line(problem: Exception) -> str:
    return " ".join(str(problem).split())
