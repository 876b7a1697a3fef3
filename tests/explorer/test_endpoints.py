"""What must not be had from the server, over plain HTTP."""

import base64
import json
import socket
import time
import urllib.error
import urllib.request

import pytest

from serving import serving
from torchmcl.explorer.middleware import Limits

SECRET = "me:a secret with: colons"


@pytest.fixture(scope="module", params=["run", "numbers_run"])
def server(request, tmp_path_factory):
    people = tmp_path_factory.mktemp("people") / "people"
    people.write_text(f"{SECRET}\n\nyou:other\n")
    folder = request.getfixturevalue(request.param)
    with serving(folder, "--auth", people, clean=False) as address:  # what no page would send is logged
        yield address


def basic(secret):
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}


def fetch(address, path="/", *, body=None, headers=None, secret=SECRET):
    """-> the answer, still open."""
    known = basic(secret) if secret else {}
    return urllib.request.urlopen(
        urllib.request.Request(address + path, body, {**known, **(headers or {})}), timeout=30
    )


def ask(address, path="/", **options):
    """-> status, headers, text."""
    try:
        with fetch(address, path, **options) as answer:
            return answer.status, answer.headers, answer.read().decode("utf-8", "replace")
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers, refused.read().decode("utf-8", "replace")


def question(address, data, fn=0, **more):
    """Join the queue as the page does, and hear what comes back."""
    body = json.dumps({"data": data, "fn_index": fn, "session_hash": "test", **more}).encode()
    status, _, text = ask(address, "/gradio_api/queue/join", body=body, headers={"Content-Type": "application/json"})
    if status != 200:
        return status, text
    with fetch(address, "/gradio_api/queue/data?session_hash=test") as stream:
        told = ""
        for line in stream:
            told += line.decode()
            if "process_completed" in told or "close_stream" in told:
                break
    return status, told


def functions(address):
    """What the page may call."""
    return json.loads(ask(address, "/config")[2])["dependencies"]


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=etc/passwd",
        "/gradio_api/file=../../../../etc/passwd",
        "/gradio_api/file=..%2f..%2f..%2fetc%2fpasswd",
        "/gradio_api/file=%2e%2e/%2e%2e/etc/passwd",
        "/gradio_api/file=C:\\windows\\win.ini",
        "/gradio_api/file=pyproject.toml",
        "/gradio_api/file/etc/passwd",
        "/file=/etc/passwd",
        "/file/etc/passwd",
        "/static/../../../../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/static//etc/passwd",
        "/assets/..%2f..%2f..%2f..%2fetc/passwd",
        "/svelte/..%5c..%5cetc%5cpasswd",
        "/assets/%00",
        "/gradio_api/proxy=http://127.0.0.1:22/",
        "/gradio_api/stream/a/b/c/playlist.m3u8",
        "/gradio_api/custom_component/1/client/component/../../../../etc/passwd",
        "/gradio_api/openapi.json",
        "/gradio_api/runs",
        "/gradio_api/deep_link",
        "/monitoring",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_path_of_the_host_is_readable(server, path):
    status, _, text = ask(server, path.replace("\\", "%5c"))
    assert status in (403, 404)
    assert "root:" not in text
    assert "Traceback" not in text


def test_a_path_is_no_picture(server, run):
    """Files go from the browser to the model by their content: no function takes the path of one."""
    for function in functions(server):
        for path in ("/etc/passwd", str(run / "config.yaml"), "../../etc/passwd"):
            file = {"path": path, "meta": {"_type": "gradio.FileData"}}
            _, told = question(server, [file], function["id"], event_data={"name": path, "data": path, "pick": path})
            for word in ("root:", "Traceback", "mcl-verdict", "learning_rate"):
                assert word not in told


def test_nothing_can_be_left_on_the_host(server):
    for path in ("/gradio_api/upload", "/upload", "/gradio_api/run/predict", "/gradio_api/component_server"):
        assert ask(server, path, body=b"x", headers={"Content-Type": "multipart/form-data; boundary=x"})[0] == 404


def test_nothing_is_told_of_what_goes_wrong_inside(server):
    every = functions(server)
    event = {"pick": "-1", "values": [[{}]], "page": "x" * 50, "name": "a", "data": "?"}
    for data in ([], [None] * 9, ["\ud800"], [{"path": 3}], [[[]]], ["a" * 1000]):
        for function in every:
            status, told = question(server, data, function["id"], event_data=event)
            assert status < 600
            for word in ("Traceback", 'File "', ".py", "site-packages"):
                assert word not in told
    assert ask(server)[0] == 200


def test_too_much_is_refused(server):
    """One byte too much: of a longer body, the server would leave a part unread, and the connection would be reset."""
    status, _, text = ask(server, "/gradio_api/queue/join", body=bytes(Limits().size + 1))
    assert status == 413
    assert "At most" in text


def test_the_page_may_ask_nobody_else(server):
    status, headers, _ = ask(server)
    assert status == 200
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"


def test_other_sites_are_refused(server):
    assert ask(server, headers={"Host": "evil.example"})[0] == 403
    evil = {"Origin": "http://evil.example", "Content-Type": "application/json"}
    assert ask(server, "/gradio_api/queue/join", body=b"{}", headers=evil)[0] == 403


def test_without_the_password_there_is_nothing(server):
    for path in ("/", "/config", "/theme.css", "/gradio_api/queue/join", "/gradio_api/file=/etc/passwd"):
        status, headers, _ = ask(server, path, secret=None)
        assert status == 401
        assert headers["WWW-Authenticate"].startswith("Basic")
    assert ask(server, "/gradio_api/queue/join", body=b"{}", secret=None)[0] == 401
    assert ask(server)[0] == 200
    assert ask(server, secret="you:other")[0] == 200
    told = [ask(server, secret=f"me:{guess}")[0] for guess in range(15)]
    assert told[0] == 401
    assert told[-1] == 429  # guessing is slow
    assert ask(server)[0] == 200  # for who guesses alone


def test_only_this_machine_is_served(server):
    port = int(server.rsplit(":", 1)[1])
    with socket.socket() as outside:
        outside.settimeout(2)
        try:
            outside.connect(("8.8.8.8", 53))  # sends nothing: only asks which address would be used
        except OSError:
            pytest.skip("this machine has no other address")
        own = outside.getsockname()[0]
    if own.startswith("127."):
        pytest.skip("this machine has no other address")
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex((own, port)) != 0


def test_a_slow_start_of_a_request_holds_nobody_up(server):
    port = int(server.rsplit(":", 1)[1])
    known = f"Authorization: {basic(SECRET)['Authorization']}\r\n".encode()
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    try:
        for one in slow:
            one.sendall(
                b"POST /gradio_api/cancel HTTP/1.1\r\nHost: 127.0.0.1\r\n" + known + b"Content-Length: 1000\r\n\r\nx"
            )
        time.sleep(0.2)
        assert ask(server)[0] == 200
    finally:
        for one in slow:
            one.close()
