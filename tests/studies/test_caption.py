from torchmcl.studies.caption import caption
from torchmcl.studies.spec import Spec

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
