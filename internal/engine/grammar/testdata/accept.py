"""Has the grammar engines of an installed vLLM release look at texts, byte by byte.

Each line of stdin is a constraint with texts; each line of stdout tells what became of them: by engine, an error of the
constraint or the texts that it refused.
"""

import json
import sys

import llguidance
import xgrammar

EOS = 256
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([bytes([i]) for i in range(256)] + [b"<eos>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[EOS])
)
BYTES = llguidance.LLTokenizer("byte")


def main():
    for line in sys.stdin:
        case = json.loads(line)
        result = {"name": case["name"]}
        for engine, accepts in (("xgrammar", xgrammar_accepts), ("guidance", guidance_accepts)):
            try:
                check = accepts(case["kind"], case["text"], case.get("choices"), case.get("lark"))
            except Exception as e:
                result[engine] = {"error": f"{type(e).__name__}: {e}"[:300]}
                continue
            if check is not None:
                result[engine] = {"refused": [t for t in case["texts"] if not check(t)], "texts": len(case["texts"])}
        print(json.dumps(result), flush=True)


def xgrammar_accepts(kind, text, choices, lark):
    """As vllm/v1/structured_output/backend_xgrammar.py compiles it."""
    if kind in ("json", "json_object"):
        compiled = COMPILER.compile_json_schema('{"type": "object"}' if kind == "json_object" else text, any_whitespace=True)
    elif kind == "regex":
        compiled = COMPILER.compile_regex(text)
    elif kind == "choice":
        compiled = COMPILER.compile_grammar("root ::= " + " | ".join(json.dumps(c) for c in choices))
    elif kind == "grammar" and lark:
        if not hasattr(COMPILER, "compile_lark"):
            return None
        compiled = COMPILER.compile_lark(text)
    elif kind == "grammar":
        compiled = COMPILER.compile_grammar(text)
    else:
        tag = json.loads(text)
        if "structures" in tag:
            tags = [xgrammar.StructuralTagItem(begin=s["begin"], schema=json.dumps(s["schema"]), end=s["end"]) for s in tag["structures"]]
            compiled = COMPILER.compile_structural_tag(tags, tag["triggers"])
        else:
            compiled = COMPILER.compile_structural_tag(text)

    def check(output):
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(b) for b in output.encode()) and matcher.accept_token(EOS)

    return check


def guidance_accepts(kind, text, choices, lark):
    """As vllm/v1/structured_output/backend_guidance.py serializes it."""
    if kind in ("json", "json_object"):
        grammar = llguidance.LLMatcher.grammar_from_json_schema('{"type": "object"}' if kind == "json_object" else text)
    elif kind == "structural_tag":
        return None
    else:
        name = {"regex": "regex", "grammar": "grammar", "choice": "choice"}[kind]
        grammar = llguidance.grammar_from(name, json.dumps(choices) if kind == "choice" else text)
    first = llguidance.LLMatcher(BYTES, grammar, log_level=0)
    if first.is_error():
        raise ValueError(first.get_error())

    def check(output):
        matcher = llguidance.LLMatcher(BYTES, grammar, log_level=0)
        return all(matcher.consume_token(b) for b in output.encode()) and matcher.is_accepting()

    return check


main()
