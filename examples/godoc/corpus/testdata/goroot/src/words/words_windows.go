package words

// Registry exists on another system only.
func Registry() {}
