package main

import (
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/torch"
)

// perScope is how many calls share a scope: a layer's worth.
const perScope = 64

// goSide times the calls in this process.
func goSide() side {
	torch.SetNumThreads(1)
	root := torch.NewScope(nil)
	one := func() *torch.Tensor { return root.Own(torch.Ones(torch.Float32, 1)) }
	x, y, out, w := one(), one(), one(), one()
	w.SetRequiresGrad(true)
	scoped := func(t *torch.Tensor, call func(t *torch.Tensor)) func(int) {
		return func(n int) {
			for ; n > 0; n -= perScope {
				s := torch.NewScope(root)
				bound := t.In(s)
				for range min(n, perScope) {
					call(bound)
				}
				s.Close()
			}
		}
	}
	runs := map[string]func(n int){
		"mul":      scoped(x, func(x *torch.Tensor) { x.Mul(y) }),
		"scalar":   scoped(x, func(x *torch.Tensor) { x.MulScalar(1) }),
		"recorded": scoped(w, func(w *torch.Tensor) { w.Mul(y) }),
		"freed": func(n int) {
			s := torch.NewScope(root)
			defer s.Close()
			for bound := x.In(s); n > 0; n-- {
				bound.Mul(y).Free()
			}
		},
		"inplace": func(n int) {
			for ; n > 0; n-- {
				out.MulInPlace(y)
			}
		},
		"chain": func(n int) {
			for n /= 4; n > 0; n -= perScope / 4 {
				s := torch.NewScope(root)
				bound := x.In(s)
				for range min(n, perScope/4) {
					bound.Mul(y).Add(x).Exp().Sub(y)
				}
				s.Close()
			}
		},
	}
	return side{
		name: "Go",
		time: func(name string, count int) (ns float64, err error) {
			run, ok := runs[name]
			if !ok {
				return 0, fmt.Errorf("no case %q", name)
			}
			err = torch.Try(func() {
				start := time.Now()
				run(count)
				ns = float64(time.Since(start).Nanoseconds()) / float64(count)
			})
			return ns, err
		},
		end: func() error {
			root.Close()
			return nil
		},
	}
}
