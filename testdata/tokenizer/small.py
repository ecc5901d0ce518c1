"""Small tokenizers of each supported kind with the reference library's ids and decodings."""
import json, sys
from tokenizers import Tokenizer, AddedToken, models, trainers, pre_tokenizers, normalizers, decoders, processors, Regex
OUT = sys.argv[1]
corpus = [x["text"] for x in json.load(open("../goldens/tokenizer/strings.json"))["strings"]]
corpus += ["The quick brown fox jumps over the lazy dog. It's 12345 o'clock, WE'LL don't can't\n\n  indented\r\n" * 3,
           "def f(x):\n    return x + 1\n" * 5, "naïve café Straße ΑΒΓ привет мир 日本語 한국어 العربية " * 4]
texts = [x["text"] for x in json.load(open("../goldens/tokenizer/strings.json"))["strings"]]
texts += ["it'S WE'RE don'ſ x'LL", "a\r\n\r\nb \n c", "1234567 12 ½ ² Ⅷ ٣٤", "<|end|>x <|end|>  <mask> a<mask>b <w>a <w> a<w>", "e\u0301 \u1e9b\u0323 \u212b ﬁ",
          "<s>hi</s> <s> hi", "▁x ▁ ▁▁", "\ufffd \x00", "a" * 300, "ab" * 200 + " " * 50 + "x", "<0x41> <0xZZ>", "   ", "\u00a0\u3000x", "<User>A</User>"]
L3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
Q2 = L3.replace(r"\p{N}{1,3}", r"\p{N}")
def bl(**k): return pre_tokenizers.ByteLevel(add_prefix_space=False, **k)
def added(t):
    t.add_special_tokens([AddedToken("<s>", special=True, normalized=False), AddedToken("</s>", special=True, normalized=False), AddedToken("<|end|>", special=True, rstrip=True, normalized=False)])
    t.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<w>", single_word=True, normalized=False), AddedToken("<User>", normalized=True)])
def byte_level(pre, norm=None, ignore=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore))
    if norm: t.normalizer = norm
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    added(t)
    return t
def sp(norm, pre, dec, **k):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer, t.decoder = norm, dec
    if pre: t.pre_tokenizer = pre
    toks = ["<unk>"] + ["<0x%02X>" % i for i in range(256)]
    # merges must not cross spaces while training
    t2 = Tokenizer(models.BPE(unk_token="<unk>"))
    t2.pre_tokenizer = pre_tokenizers.Metaspace()
    t2.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], limit_alphabet=80, show_progress=False))
    m = json.loads(t2.to_str())["model"]
    vocab = {}
    for s in toks: vocab[s] = len(vocab)
    for s in sorted(m["vocab"], key=m["vocab"].get):
        if s not in vocab: vocab[s] = len(vocab)
    t.model = models.BPE(vocab=vocab, merges=[tuple(x) for x in m["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    added(t)
    return t
LL2 = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
def bos(t):
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", t.token_to_id("<s>")), ("</s>", t.token_to_id("</s>"))])])
    return t
split = lambda p: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated"), bl(use_regex=False)])
toks = {
 "gpt2": byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
 "llama3": bos(byte_level(split(L3), ignore=True)),
 "qwen2": byte_level(split(Q2), normalizers.NFC()),
 "digits": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bl()])),
 "split": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "merged_with_previous"), pre_tokenizers.Split(Regex(r"(?<=[a-z])(?=[A-Z])|\p{P}+"), "merged_with_next"),
          pre_tokenizers.Split(Regex(r"\s+"), "contiguous"), pre_tokenizers.Split("x", "removed"), pre_tokenizers.Digits(individual_digits=False), bl(use_regex=False)]),
          normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex("q+"), "Q"), normalizers.Strip(left=True, right=False)])),
 "llama2": bos(sp(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None, LL2)),
 "metaspace": sp(normalizers.NFKC(), pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first")),
}
for name, t in toks.items():
    j = json.loads(t.to_str())
    if name in ("gpt2", "llama2"): j["model"]["merges"] = [" ".join(p) for p in j["model"]["merges"]]  # the older spelling
    # id gaps and orders as written
    s = json.dumps(j, ensure_ascii=False)
    t = Tokenizer.from_str(s)
    cases = []
    for x in texts:
        e = t.encode(x, add_special_tokens=True)
        cases.append({"text": x, "ids": e.ids, "decoded": t.decode(e.ids, skip_special_tokens=False), "decoded_skip_special": t.decode(e.ids, skip_special_tokens=True)})
    json.dump({"tokenizer": j, "cases": cases}, open(f"{OUT}/{name}.json", "w"), ensure_ascii=False, separators=(",", ":"))
