from torchmcl.studies.caption import caption
from torchmcl.studies.scales import scale
from torchmcl.studies.spec import Spec
from torchmcl.studies.study import protocol_caption

PLAIN = {"data": "icoseg", "members": 2, "epochs": 30, "batch_size": 32, "seed": 0}
FCN = {**PLAIN, "network": "fcn", "width": 16, "preset": "light", "drop_every": 8}


def test_what_applies_to_some_networks_only():
    text = caption([Spec(FCN), Spec({**PLAIN, "network": "efficientnet_lite0"})], {})
    assert text == (
        "icoseg; fcn of width 16 with light fusion and efficientnet_lite0; M = 2; 30 epochs, batches of 32, "
        "learning rate multiplied by 0.2 every 8 epochs for fcn; seed 0."
    )


def test_what_applies_to_all_networks():
    text = caption([Spec(FCN), Spec({**FCN, "width": 8}), Spec({**FCN, "network": "vgg16", "width": None})], {})
    assert text == (
        "icoseg; fcn of width 16 and fcn of width 8 and vgg16, light fusion; M = 2; 30 epochs, batches of 32, "
        "learning rate multiplied by 0.2 every 8 epochs; seed 0."
    )


def test_different_drops():
    specs = [
        Spec({**FCN, "network": name, "drop_every": drop}) for name, drop in (("fcn", 4), ("mlp", 8), ("vgg16", 4))
    ]
    assert "rate multiplied by 0.2 every 4 epochs for fcn and vgg16 and every 8 epochs for mlp;" in caption(specs, {})


def test_different_epochs():
    """Also of runs that do not set them: those of the stored result count."""
    short = Spec({**{name: PLAIN[name] for name in PLAIN if name != "epochs"}, "network": "mlp"})
    stored = {short.hash: {"examples": {}, "configuration": short.configuration, "epochs": 12}}
    assert "; 30 epochs for fcn and 12 epochs for mlp, batches of 32" in caption([Spec(FCN), short], stored)
    longer = Spec({**FCN, "epochs": 40, "seed": 1})
    assert "; 30, 40 epochs, batches of 32" in caption([longer, Spec(FCN)], {})


def test_runs_with_different_numbers_of_images():
    specs = [Spec({**PLAIN, "network": "fcn", "data_limit": limit}) for limit in (10, 50, None)]
    sizes = [
        {"train": 8, "validation": 2, "test": 5},
        {"train": 40, "validation": 10, "test": 5},
        {"train": 50, "test": 5},
    ]
    results = {
        spec.hash: {"examples": size, "configuration": spec.configuration, "epochs": 30}
        for spec, size in zip(specs, sizes, strict=True)
    }
    assert "images: 8 or 40 or 50 train, 2 or 10 validation, 5 test;" in caption(specs, results)
    assert "images: 8 train, 2 validation, 5 test;" in caption(specs[:1], results)


def test_settings_are_said_to_be_chosen_only_where_there_is_a_grid():
    assert protocol_caption(scale("standard")).endswith("rate and decay: chosen on the validation split.")
    assert protocol_caption(scale("scratch")).endswith("rate and decay: not tuned.")
