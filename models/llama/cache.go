package llama

import "github.com/gofsdp/gofsdp/torch"

// cache keeps keys and values of past tokens during generation. A nil cache keeps nothing.
type cache struct {
	layers []layerCache
}

// layerCache is one layer's part: (batch, kv heads, capacity, head dim), allocated at its first use.
type layerCache struct {
	owner    *torch.Scope
	capacity int64
	length   int64
	k, v     *torch.Tensor
}

func newCache(owner *torch.Scope, layers int, capacity int64) *cache {
	c := &cache{layers: make([]layerCache, layers)}
	for i := range c.layers {
		c.layers[i] = layerCache{owner: owner, capacity: capacity}
	}
	return c
}

func (c *cache) layer(i int) *layerCache {
	if c == nil {
		return nil
	}
	return &c.layers[i]
}

// length is the number of tokens that all layers have seen.
func (c *cache) length() int64 {
	if c == nil {
		return 0
	}
	return c.layers[len(c.layers)-1].length
}

// append adds k and v of new tokens and gives those of all tokens, bound to s.
func (l *layerCache) append(s *torch.Scope, k, v *torch.Tensor) (allK, allV *torch.Tensor) {
	shape := k.Shape()
	if l.k == nil {
		l.k = l.owner.Own(torch.EmptyOn(k.Device(), k.DType(), shape[0], shape[1], l.capacity, shape[3]))
		l.v = l.owner.Own(torch.EmptyOn(v.Device(), v.DType(), shape[0], shape[1], l.capacity, shape[3]))
	}
	tokens := shape[2]
	l.k.In(s).Narrow(2, l.length, tokens).Copy(k)
	l.v.In(s).Narrow(2, l.length, tokens).Copy(v)
	l.length += tokens
	return l.k.In(s).Narrow(2, 0, l.length), l.v.In(s).Narrow(2, 0, l.length)
}
