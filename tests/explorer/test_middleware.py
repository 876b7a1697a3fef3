import asyncio

import pytest

from torchmcl.explorer.middleware import AccessMiddleware, Limits


async def page(scope, receive, send):
    """An application that says how much it was sent; or breaks."""
    body = b""
    if scope["method"] == "POST":
        message = await receive()
        body = message["body"]
        assert not message["more_body"]
    if scope["path"] == "/config":
        raise RuntimeError("a secret path: /home/me")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


async def asked(guard, path="/", *, method="GET", parts=(b"",), headers=(), client="1.2.3.4", wait=0.0):
    """-> status, headers, text; the body comes in parts, with a wait before each."""
    told = []
    left = list(parts)

    async def receive():
        await asyncio.sleep(wait)
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        told.append(message)

    scope = {"type": "http", "method": method, "path": path, "client": (client, 1), "headers": list(headers)}
    await guard(scope, receive, send)
    return told[0]["status"], dict(told[0]["headers"]), b"".join(part.get("body", b"") for part in told[1:]).decode()


def ask(*arguments, **options):
    return asyncio.run(asked(*arguments, **options))


def test_what_arrives_in_parts_is_handed_on_whole():
    assert ask(AccessMiddleware(page), "/gradio_api/queue/join", method="POST", parts=[b"ab", b"c"])[2] == "3"


def test_errors_behind_are_not_told(caplog):
    status, _, text = ask(AccessMiddleware(page), "/config")
    assert status == 500
    assert "secret" not in text
    assert "secret" in caplog.text  # but they are logged


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/", "GET", 200),
        ("/", "HEAD", 200),
        ("/assets/index-a.b_c.js", "GET", 200),
        ("/assets/../x", "GET", 404),
        ("/gradio_api/heartbeat/abc123", "GET", 200),
        ("/gradio_api/file=/etc/passwd", "GET", 404),
        ("/gradio_api/queue/join", "GET", 404),
        ("/gradio_api/queue/join", "PUT", 404),
        ("/gradio_api/upload", "POST", 404),
        ("/gradio_api/run/predict", "POST", 404),
        ("/gradio_api/call/x", "POST", 404),
        ("/gradio_api/component_server", "POST", 404),
        ("/login", "POST", 404),
    ],
)
def test_addresses(path, method, status):
    assert ask(AccessMiddleware(page), path, method=method)[0] == status


def test_size_counts_whatever_is_announced():
    guard = AccessMiddleware(page, limits=Limits(size=10))
    assert ask(guard, "/gradio_api/queue/join", method="POST", parts=[b"x" * 6] * 2)[0] == 413
    assert ask(guard, "/gradio_api/queue/join", method="POST", parts=[b"x" * 5] * 2)[0] == 200


def test_slow_requests_are_given_up():
    guard = AccessMiddleware(page, limits=Limits(seconds=0.05))
    assert ask(guard, "/gradio_api/queue/join", method="POST", parts=[b"x"] * 50, wait=0.01)[0] == 408


def test_slow_senders_hold_nobody_up():
    guard = AccessMiddleware(page, limits=Limits(concurrent=2))

    async def together():
        post = {"path": "/gradio_api/queue/join", "method": "POST"}
        slow = [asyncio.create_task(asked(guard, **post, parts=[b"x"] * 3, wait=0.05)) for _ in range(2)]
        await asyncio.sleep(0.02)
        same, other = await asked(guard, **post), await asked(guard, **post, client="5.6.7.8")
        done = [answer[0] for answer in await asyncio.gather(*slow)]
        return same[0], other[0], done, (await asked(guard, **post))[0]

    assert asyncio.run(together()) == (429, 200, [200, 200], 200)
    assert not guard.arriving  # and nobody is remembered


def test_one_address_cannot_take_everything():
    guard = AccessMiddleware(page, limits=Limits(rate=0.001, burst=3))
    told = [ask(guard, "/gradio_api/cancel", method="POST")[0] for _ in range(5)]
    assert told == [200, 200, 200, 429, 429]
    assert ask(guard, "/gradio_api/cancel", method="POST", client="5.6.7.8")[0] == 200
    assert ask(guard)[0] == 200  # reading goes on


def test_every_answer_says_what_the_page_may_do():
    for path in ("/", "/nothing", "/config"):
        assert b"content-security-policy" in ask(AccessMiddleware(page), path)[1]


@pytest.mark.parametrize("given", [b"", b"Basic", b"Basic !!!", b"Bearer bWU6eA==", b"Basic bWU6eQ==", b"Basic \xff"])
def test_wrong_credentials(given):
    assert ask(AccessMiddleware(page, auth=["me:x"]), headers=[(b"authorization", given)])[0] == 401


def test_right_credentials():
    assert (
        ask(AccessMiddleware(page, auth=["you:z", "me:x"]), headers=[(b"authorization", b"Basic bWU6eA==")])[0] == 200
    )
