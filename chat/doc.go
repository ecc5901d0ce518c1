// Package chat renders conversations with the Jinja chat template of a model, as
// transformers' apply_chat_template does, and tells which tokens a model should learn.
//
//	tok, err := tokenizer.Load(dir)
//	tpl, err := chat.New(tok.ChatTemplate(), tok.SpecialTokens())
//	text, err := tpl.Render(messages, chat.RenderOptions{AddGenerationPrompt: true})
//	ids, mask, err := tpl.Encode(tok, messages, chat.EncodeOptions{})
//
// Templates are Jinja programs; the engine in internal/jinja follows jinja2 as transformers
// sets it up: trim_blocks, lstrip_blocks, tojson as Python prints it, raise_exception,
// strftime_now, loop controls and {% generation %}. Templates whose output was compared with
// jinja2 are listed by hash (Verified), and New warns once about any other. A template that
// does not parse is an error; no other format is ever used in its place.
package chat
