"""An encrypted way to a server that has none: real TLS for whoever enters, which wants certificates of both sides."""

import asyncio
import contextlib
import ssl
import subprocess


def make_certificate(folder):
    """The PEM files of a certificate for this machine, which stands for itself, and of its key."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, *subject]
    subprocess.run(make, check=True, capture_output=True, timeout=60)
    return cert, key


@contextlib.asynccontextmanager
async def tls_door(open_inside, cert, key):
    """The port of a door; `open_inside` connects to the server behind it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=cert)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def pass_on(reader, writer):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
        writer.close()

    async def enter(reader, writer):
        inside, outside = await open_inside()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pass_on(reader, outside))
            tasks.create_task(pass_on(inside, writer))

    async with await asyncio.start_server(enter, "127.0.0.1", 0, ssl=context) as door:
        yield door.sockets[0].getsockname()[1]
