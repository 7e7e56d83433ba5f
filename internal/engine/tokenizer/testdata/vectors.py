#!/usr/bin/env python3
"""Make testdata/tokenizers and testdata/vectors with the Rust library: pip install tokenizers==0.23.3.

    vectors.py                              train the tokenizers, and write 500 texts for each and for the tiny model
    vectors.py NAME TOKENIZER.JSON N SEED   write N texts for one tokenizer, on standard output
"""
import glob, gzip, json, os, random, sys, sysconfig, unicodedata
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + END
LLAMA = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + END
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = ("the quick brown fox it's I'LL we've don't 123 4567 3.14 x1y foo_bar word wordy [MASK] <a b> a <｜User｜> ＦＵＬＬ "
         "FULL <think> <|eot_id|> <|im_start|> <|im_end|> <|endoftext|> <|im_ Ünïcödé 日本語 テスト 한국어 русский العربية "
         "हिन्दी ไทย 😀 👩‍👩‍👧 é e\u0301 \u212b ﬁ ſ 'ſ 'S \u00a0 \u2028 \u200d \ufeff \x00 \x1c \x85 \t \r\n \n\n    if x == "
         "y: return {\"a\": [1, 2]} ½ ² Ⅷ ١٢٣ 𝟙 ǅ ʰ _ -- ... !!! ?? ~~ (( )) \\ / user assistant\n system\n").split(" ")
SEPARATORS = ["", " ", "  ", "   ", "\n", " \n", "\t", "\r\n", "\u00a0", "\u3000"]


def character(r):
    while True:
        c = chr(r.choice([r.randint(0, 0x10FFFF), r.randint(0, 0xFFFF), r.randint(0, 0x7F)]))
        # What is not assigned in one version of Unicode may be a letter in the next.
        if unicodedata.category(c) not in ("Cn", "Cs"):
            return c


def text(r, i):
    if i % 4 == 0:
        return "".join(r.choice(WORDS) + r.choice(SEPARATORS) for _ in range(r.randint(0, 12)))
    if i % 4 == 1:
        return "".join(chr(r.randint(0, 0x2FF)) for _ in range(r.randint(0, 30)))
    if i % 4 == 2:
        return "".join(character(r) for _ in range(r.randint(0, 20)))
    return "".join(r.choice(" \t\n\r\x0b\x0c\u00a0ab'sS1!.\u0085") for _ in range(r.randint(0, 25)))


def vectors(tokenizer, n, seed):
    r = random.Random(seed)
    size = tokenizer.get_vocab_size()
    for i in range(n):
        s = text(r, i)
        ids = tokenizer.encode(s, add_special_tokens=False).ids
        drawn = [r.randrange(size + 3) for _ in range(r.randint(0, 12))]
        yield json.dumps({
            "Text": s, "IDs": ids, "Decoded": tokenizer.decode(ids, skip_special_tokens=False),
            "Drawn": drawn, "DrawnText": tokenizer.decode(drawn, skip_special_tokens=False),
        })


def train(name, split, added=(), normalizer=None, post=None, patch=None):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = split, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    files = sorted(glob.glob(sysconfig.get_paths()["stdlib"] + "/*.py"))[:60]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator((open(f, errors="replace").read() for f in files),
                          trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False))
    t.add_tokens(list(added))
    if post:
        t.post_processor = post(t)
    j = json.loads(t.to_str())
    if patch:
        patch(j)
    with open(f"{HERE}/tokenizers/{name}.json", "w") as f:
        json.dump(j, f, ensure_ascii=False, separators=(",", ":"))


def template(t):
    begin = "<|begin_of_text|>"
    return processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=begin + " $A", special_tokens=[(begin, t.token_to_id(begin))]),
    ])


def train_all():
    special = lambda *names: [AddedToken(n, special=True) for n in names]
    regex = lambda r: pre_tokenizers.Split(Regex(r), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    sequence = lambda *parts: pre_tokenizers.Sequence([*parts, level])
    train("qwen3", sequence(regex(QWEN)), normalizer=normalizers.NFC(),
          added=special("<|endoftext|>", "<|im_start|>", "<|im_end|>") + [AddedToken("<think>", normalized=False)])
    # A piece that is a token is taken whole, even where no merges lead to it.
    train("llama3", sequence(regex(LLAMA)), added=special("<|begin_of_text|>", "<|eot_id|>"), post=template,
          patch=lambda j: j["model"].update(ignore_merges=True, merges=j["model"]["merges"][:600]))
    train("deepseek", sequence(regex(r"\p{N}{1,3}"), regex("[一-龥぀-ゟ゠-ヿ]+"), regex(DEEPSEEK)),
          added=[AddedToken("<｜User｜>", normalized=False), AddedToken("<a b>", lstrip=True, rstrip=True, normalized=True),
                 AddedToken("word", single_word=True)])
    train("o200k", sequence(regex(O200K)), added=special("<|return|>"))
    train("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True), normalizer=normalizers.NFKC(),
          added=[AddedToken("[MASK]", lstrip=True), AddedToken("ＦＵＬＬ", normalized=True)])
    train("digits", sequence(pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(" ", "removed"),
                             pre_tokenizers.Split(Regex(r"[\p{L}\p{N}]+|[^\p{L}\p{N}]+"), "removed", invert=True)))
    # Bytes without a token: one unknown for several of them.
    def unknown(j):
        model = j["model"]
        del model["vocab"]["þ"], model["vocab"]["ÿ"], model["vocab"]["Ĭ"]
        model["vocab"].update({n: i for i, n in enumerate(model["vocab"])})
        model["merges"] = [m for m in model["merges"] if not {"þ", "ÿ", "Ĭ"} & set("".join(m))]
        model["vocab"] = {n: i for i, n in enumerate(["<unk>"] + [n for n in model["vocab"]])}
        model.update(unk_token="<unk>", fuse_unk=True)
        j["added_tokens"] = []
    train("unknown", sequence(regex(LLAMA)), patch=unknown)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for line in vectors(Tokenizer.from_file(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])):
            print(line)
        sys.exit()
    os.makedirs(f"{HERE}/tokenizers", exist_ok=True)
    os.makedirs(f"{HERE}/vectors", exist_ok=True)
    train_all()
    paths = sorted(glob.glob(f"{HERE}/tokenizers/*.json")) + [f"{HERE}/../../../testdata/model/tiny/tokenizer.json"]
    for path in paths:
        name = os.path.basename(path).removesuffix(".json")
        name = "tiny" if name == "tokenizer" else name
        with open(f"{HERE}/vectors/{name}.jsonl.gz", "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
            for line in vectors(Tokenizer.from_file(path), 500, 1):
                z.write(line.encode() + b"\n")
