package chat

// verified lists the SHA-256 of templates whose rendering equals that of jinja2 (set up as
// transformers does) on plain, multi-turn and, where the template takes them, tool conversations.
var verified = map[string]string{
	"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": "SmolLM2-Instruct, GGUF",
}

// Verified reports whether the rendering of this template was compared with jinja2.
func Verified(template string) bool {
	_, ok := verified[Hash(template)]
	return ok
}
