"""vLLM's own command line, whose API server has one route more: POST /call {"method": NAME, "args": [...]} lets the client of the
engine call a method, as vLLM's Python interface does for those that no route of the API server calls."""
import sys

import fastapi


async def call(request: fastapi.Request):
    asked = await request.json()
    client = request.app.state.engine_client.engine_core
    try:
        result = await client.call_utility_async(asked["method"], *asked.get("args", []))
    except Exception as failure:
        return fastapi.responses.JSONResponse({"failure": str(failure)}, status_code=500)
    return {"result": repr(result)}


def with_route(made):
    def make(app, *args, **kwargs):
        made(app, *args, **kwargs)
        app.add_api_route("/call", call, methods=["POST"])

    return make


fastapi.FastAPI.__init__ = with_route(fastapi.FastAPI.__init__)

if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
