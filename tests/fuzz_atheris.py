"""Damage that coverage guides: python tests/fuzz_atheris.py READER [options of libFuzzer]; alone, a list of readers."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    if len(sys.argv) == 1:
        from readers import READERS

        print("\n".join(READERS))
        return
    import atheris

    with atheris.instrument_imports(include=["torchmcl", "yaml", "zipfile", "json"]):
        from readers import READERS

    from outcomes import ends_well

    seeds, read = READERS[sys.argv.pop(1)]
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "corpus").mkdir()
        for number, content in enumerate(seeds()):
            (folder / "corpus" / str(number)).write_bytes(content)

        def one(content: bytes) -> None:
            (folder / "file").write_bytes(content)
            ends_well(lambda: read(folder / "file"))

        atheris.Setup([*sys.argv, str(folder / "corpus")], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
