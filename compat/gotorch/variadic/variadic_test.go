package variadic_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/wangkuiyi/gotorch/variadic"
)

func TestOptions(t *testing.T) {
	opts := []map[string]interface{}{{"dim": 1}, {"other": 2}}
	require.True(t, variadic.Has(opts, "dim"))
	require.False(t, variadic.Has(opts, "other"))
	require.Equal(t, 1, variadic.Get(opts, "dim", 9))
	require.Equal(t, 9, variadic.Get(opts, "other", 9))
	require.Nil(t, variadic.Get(opts, "other"))
	require.Nil(t, variadic.Get(nil, "dim", 9))
	v, ok := variadic.Lookup(opts, "dim")
	require.True(t, ok)
	require.Equal(t, 1, v)
}
