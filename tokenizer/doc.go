// Package tokenizer turns text into token ids and back, exactly as the Hugging Face
// tokenizers library does, for byte-pair-encoding models stored as tokenizer.json.
//
// The stages are those of the file format, one Go file each:
//
//	added.go      added tokens (<|im_end|>, …) are cut out of the text first
//	normalize.go  Unicode normal forms, Prepend, Replace, …
//	pretokenize.go, scan.go  split into words (ByteLevel, Digits, Split, Metaspace)
//	bpe.go        merge each word's symbols by rank; words are cached
//	postprocess.go  beginning-of-sequence tokens
//	decode.go     ids back to text, whole or streamed
//
// Supported are GPT-2 style byte-level vocabularies (SmolLM2, Llama 3, Qwen 2) and
// SentencePiece vocabularies exported as BPE with byte fallback (Llama 2, Mistral).
// A component that is not supported is a load error that names it; nothing is approximated.
//
// A Tokenizer is immutable after loading, apart from its internal word cache, and safe for
// concurrent use:
//
//	tok, err := tokenizer.Load("models/smollm2")
//	ids, err := tok.Encode("Hello, world!", tokenizer.EncodeOptions{AddSpecialTokens: true})
//	text := tok.Decode(ids, true)
//
// FromGGUF writes the same files from the vocabulary inside a GGUF file.
package tokenizer
