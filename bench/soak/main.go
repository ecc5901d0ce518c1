// Soak trains a small model for very many steps and watches memory: the bytes of live tensors must come back exactly,
// and the process must not grow.
//
//	go run ./bench/soak                       # 100,000 steps with scopes, after a warm-up
//	go run ./bench/soak -scopes=false         # left to Go's collector
//	go run ./bench/soak -gc=false -steps 2000 # no collector at all: scopes alone must free everything
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/optim"
)

func main() {
	var c config
	flag.IntVar(&c.steps, "steps", 100_000, "training steps")
	flag.IntVar(&c.warmup, "warmup", 30_000, "training steps before the measurement begins")
	flag.BoolVar(&c.scopes, "scopes", true, "free each step's tensors by a scope")
	flag.BoolVar(&c.gc, "gc", true, "let Go's collector run")
	flag.Parse()
	c.progress = func(step int, rssKB int64) { fmt.Printf("step %7d  RSS %7d kB\n", step, rssKB) }
	r, err := run(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print(r)
}

type config struct {
	steps      int
	warmup     int // steps before; 100 where it is less: the optimiser must have its state
	scopes, gc bool
	progress   func(step int, rssKB int64) // at every tenth of the way; may be nil
}

// result is what a run did to memory. Before and after are measured once the optimiser has its state.
type result struct {
	steps         int
	elapsed       time.Duration
	before, after torch.Memory
	slope         float64  // kB of RSS per 1,000 steps, by least squares, after the collector
	peaks         [2]int64 // the most RSS in kB of each half, before the collector
	loss          float64  // of the last step
}

func (r result) String() string {
	return fmt.Sprintf("%d steps in %v (%.0f us each), loss %.4f\nlive bytes %d -> %d, live tensors %d -> %d\nRSS slope %.3f kB per 1,000 steps; most %d kB in the first half, %d kB in the second\n",
		r.steps, r.elapsed.Round(time.Millisecond), float64(r.elapsed.Microseconds())/float64(r.steps), r.loss,
		r.before.LiveBytes, r.after.LiveBytes, r.before.LiveTensors, r.after.LiveTensors, r.slope,
		r.peaks[0], r.peaks[1])
}

// trainer is a classifier of points in four quadrants.
type trainer struct {
	model *nn.Sequential
	opt   *optim.Adam
	x, y  *torch.Tensor
}

func newTrainer() (*trainer, error) {
	g := torch.NewGenerator(1)
	t := &trainer{model: nn.NewSequential(nn.NewLinear(2, 32, true, torch.Float32, torch.CPU), nn.ReLU(),
		nn.NewLinear(32, 4, true, torch.Float32, torch.CPU))}
	nn.ResetParameters(t.model, g)
	t.x = torch.Rand(g, torch.Float32, 64, 2).AddScalar(-0.5)
	right := t.x.GtScalar(0).To(torch.Int64)
	t.y = right.Select(1, 0).Add(right.Select(1, 1).MulScalar(2)).To(torch.Int64)
	var err error
	t.opt, err = optim.NewAdamW(nn.Params(t.model), optim.AdamConfig{LR: 1e-3})
	return t, err
}

// step trains once and gives the loss.
func (t *trainer) step(scopes bool) float64 {
	var scope *torch.Scope
	if scopes {
		scope = torch.NewScope(nil)
		defer scope.Close()
	}
	logits := nn.Run(t.model, &nn.Call{Scope: scope, Training: true}, t.x.In(scope))
	loss := functional.CrossEntropy(logits, t.y.In(scope), torch.ReduceMean, functional.ClassOptions{})
	loss.Backward()
	t.opt.Step()
	t.opt.ZeroGrad()
	return loss.Item()
}

func run(c config) (result, error) {
	if err := torch.LoadLibrary(); err != nil {
		return result{}, err
	}
	if !c.gc {
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
	}
	r := result{steps: c.steps}
	err := torch.Try(func() {
		t, err := newTrainer()
		torch.Throw(err)
		for range max(100, c.warmup) {
			t.step(c.scopes)
		}
		settle()
		r.before = torch.MemoryStats()
		started := time.Now()
		var fit line
		every := max(1, c.steps/100)
		for i := 1; i <= c.steps; i++ {
			r.loss = t.step(c.scopes)
			if i%every != 0 {
				continue
			}
			rss := residentKB()
			if c.gc { // what is retained, without the pages that Go and the C library hold back for later
				debug.FreeOSMemory()
				torch.TrimMemory()
			}
			kept := residentKB()
			fit.add(float64(i)/1000, float64(kept))
			half := &r.peaks[min(1, 2*i/(c.steps+1))]
			*half = max(*half, rss)
			if c.progress != nil && i%(10*every) == 0 {
				c.progress(i, rss)
			}
		}
		r.elapsed = time.Since(started)
		r.slope = fit.slope()
		if c.gc {
			settle()
		}
		r.after = torch.MemoryStats()
		runtime.KeepAlive(t)
	})
	return r, err
}

// settle waits until the collector has freed what it can.
func settle() {
	runtime.GC()
	for calm, last := 0, int64(-1); calm < 5; {
		time.Sleep(2 * time.Millisecond)
		if now := torch.MemoryStats().LiveTensors; now == last {
			calm++
		} else {
			calm, last = 0, now
		}
	}
}

// line fits a straight line by least squares.
type line struct{ n, x, y, xx, xy float64 }

func (l *line) add(x, y float64) {
	l.n, l.x, l.y, l.xx, l.xy = l.n+1, l.x+x, l.y+y, l.xx+x*x, l.xy+x*y
}

func (l *line) slope() float64 {
	if d := l.n*l.xx - l.x*l.x; d != 0 {
		return (l.n*l.xy - l.x*l.y) / d
	}
	return 0
}

// residentKB is the process's memory in RAM, by Linux's count; 0 elsewhere.
func residentKB() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, text := range strings.Split(string(data), "\n") {
		if f := strings.Fields(text); len(f) > 1 && f[0] == "VmRSS:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}
