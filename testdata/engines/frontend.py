"""A frontend that is none, for the tests of whoever judges frontends.

It is wrong in the way that it is told: it ends, it does nothing, it serves HTTP and never an
engine, or it prints what a CI service or a terminal takes for commands.
"""

import http.server
import signal
import sys

COMMANDS = "\r\n::error::as a line\n##[error]anywhere ##vso[task.complete]too \x1b[31mred \x1b]0;title\x07</script>]]>\n"


class Polite(http.server.BaseHTTPRequestHandler):
    """Answers everything, whatever it is."""

    def do_GET(self):
        answer = COMMANDS.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET


def main():
    fault, port = sys.argv[1], int(sys.argv[2])
    print(COMMANDS, flush=True)
    if fault == "ends":
        sys.exit(1)
    if fault == "http":
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Polite).serve_forever()
    while True:
        signal.pause()


main()
