#!/usr/bin/env python3
"""Make the binary datasets of this folder: pip install pyarrow==26.0.1 tokenizers==0.23.3."""
import hashlib, json, os, sqlite3, struct
import pyarrow as pa, pyarrow.parquet as pq
from tokenizers import Tokenizer

os.chdir(os.path.dirname(os.path.abspath(__file__)))
rows = {"instruction": ["Say hello", "Count", None, "No answer"], "input": ["", "to three", "x", None],
        "output": ["Hello, wörld! 😀", "1\n2\n3", "only an input", ""]}
for codec in ["NONE", "SNAPPY", "GZIP", "ZSTD", "BROTLI", "LZ4"]:
    pq.write_table(pa.table(rows), f"flat-{codec.lower()}.parquet", compression=codec)
chat = [[{"role": "system", "content": "Be short"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
         {"role": "user", "content": "Bye"}, {"role": "assistant", "content": "Farewell"}]]
pq.write_table(pa.table({"messages": chat, "id": [1]}), "messages.parquet")

tok = Tokenizer.from_file("../../../testdata/model/tiny/tokenizer.json")
if os.path.exists("tokens.sqlite"):
    os.remove("tokens.sqlite")
db = sqlite3.connect("tokens.sqlite")
db.execute("CREATE TABLE llmd (id INTEGER PRIMARY KEY, prompt_hash BLOB, gen_tokens JSON, n_gen_tokens INTEGER)")
for prompt, answer in [("Say hello", "Hello, wörld!"), ("Count", "1\n2\n3"), ("Say hello", "Again")]:
    ids, said = tok.encode(prompt).ids, tok.encode(answer)
    digest = hashlib.sha256(b"".join(struct.pack("<I", i) for i in ids)).digest()
    db.execute("INSERT INTO llmd (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?, ?, ?)",
               (digest, json.dumps({"strings": said.tokens, "numbers": said.ids}), len(said.ids)))
db.commit()
