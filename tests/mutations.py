"""Damage by chance, the same for the same seed."""

from random import Random

INTERESTING = [b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff" * 4, b"\x00" * 8, b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"]
INTERESTING += [
    b"\xff" * 8,
    b"9" * 30,
    b"-1",
    b"[" * 50,
    b"{",
    b"&a [*a]",
    b"!!",
    b"\n",
    b'"',
    b"\x80\x04",
    b"c",
    b"PK\x03\x04",
]


def mutated(content: bytes, random: Random) -> bytes:
    """One to four of: a bit flipped, a byte or a number replaced, a part cut, doubled, moved or removed."""
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(made) + 1)
        # The head says what follows: it is damaged more often than its share.
        at = min(at, random.choice((len(made), 256)))
        match random.randrange(7):
            case 0 if at < len(made):
                made[at] ^= 1 << random.randrange(8)
            case 1 if at < len(made):
                made[at] = random.randrange(256)
            case 2:
                some = random.choice(INTERESTING)
                made[at : at + len(some)] = some
            case 3:
                made[at:at] = random.choice(INTERESTING)
            case 4:
                del made[at:]
            case 5:
                del made[at : at + random.choice((1, 4, 8, 64))]
            case _:
                size = random.choice((4, 16, 300))
                made[at:at] = made[at : at + size]
    return bytes(made)
