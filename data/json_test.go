package data

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzParseJSON checks that the parser accepts what encoding/json accepts, apart from invalid UTF-8 and deep nesting,
// and that every value's bytes are that value.
func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,-2.5e3,true,false,null,"x\n\u00e9\ud83d"],"b":{}}`, ` [ ] `, `"\\"`, `01`, `-`, `{"a" 1}`, `[1,]`, `tru`, "\"\x01\"", `1e5`, "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		v, fault := parseJSON(src)
		if fault != nil {
			require.GreaterOrEqual(t, fault.off, 0)
			require.LessOrEqual(t, fault.off, len(src))
			if json.Valid(src) && utf8.Valid(src) {
				require.Contains(t, fault.msg, "nesting")
			}
			return
		}
		require.True(t, json.Valid(src), "%q", src)
		var check func(v *value)
		check = func(v *value) {
			require.True(t, json.Valid(src[v.off:v.end]))
			if v.kind == kindString {
				var want string
				require.NoError(t, json.Unmarshal(src[v.off:v.end], &want))
				require.Equal(t, want, v.str)
			}
			for i := range v.items {
				check(&v.items[i])
			}
		}
		check(v)
	})
}
