// Package variadic reads named options, which functions take as a last argument ...map[string]interface{}. The first map
// counts.
package variadic

// Has tells whether the option key is given.
func Has(opts []map[string]interface{}, key string) bool {
	_, ok := Lookup(opts, key)
	return ok
}

// Get is the value of the option key. Where it is not given Get is the fallback, if there is one; without any options at
// all it is nil.
func Get(opts []map[string]interface{}, key string, fallback ...interface{}) interface{} {
	v, ok := Lookup(opts, key)
	if !ok && len(opts) > 0 && len(fallback) > 0 {
		return fallback[0]
	}
	return v
}

// Lookup is the value of the option key, and whether it is given.
func Lookup(opts []map[string]interface{}, key string) (interface{}, bool) {
	if len(opts) == 0 {
		return nil, false
	}
	v, ok := opts[0][key]
	return v, ok
}
