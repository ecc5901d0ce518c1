// Command calls times one call of an operator on one-element tensors, where the call costs and not the arithmetic: from
// Go through package torch, from C++ and from Python.
//
//	go run ./bench/calls                 all cases, 20 runs of each side in turn
//	go run ./bench/calls --only go       the Go side alone, for a profiler
//
// The sides run in turn, a few milliseconds each, so that a machine that slows down or is shared slows all of them; the
// medians of the runs are compared. Every side uses one thread.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/gofsdp/gofsdp/bench/peer"
)

type options struct {
	Runs  int    `help:"Runs of each case on each side." default:"20"`
	Calls int    `help:"Calls of a run." default:"20000"`
	Case  string `help:"One case only."`
	Only  string `help:"One side only: go, c++ or python." enum:"go,c++,python,all" default:"all"`
	Cpp   string `help:"The C++ side." default:"build/bench/calls_bench"`
	Out   string `help:"Where all figures are written." default:"build/bench/calls.json"`
}

func main() {
	var o options
	kong.Parse(&o, kong.Description("Compare the cost of one call of an operator from Go, C++ and Python."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "calls:", err)
		os.Exit(1)
	}
}

// cases are the names that the sides know, and what they do.
var cases = []struct{ name, title string }{
	{"mul", "x · y"},
	{"freed", "x · y, each result freed by itself"},
	{"scalar", "x · 1"},
	{"inplace", "x ← x · y"},
	{"recorded", "w · y, recorded by autograd"},
	{"chain", "a chain of four operators, per operator"},
}

// side is a program, or this one, that times count calls of a case and gives the nanoseconds of one.
type side struct {
	name string
	time func(name string, count int) (float64, error)
	end  func() error
}

func (o options) run(ctx context.Context) (err error) {
	if o.Runs < 1 || o.Calls < 4 {
		return errors.New("at least one run of four calls, please")
	}
	sides, err := o.sides(ctx)
	for _, s := range sides {
		defer func() { err = errors.Join(err, s.end()) }()
	}
	if err != nil {
		return err
	}
	results := results{Machine: peer.ThisMachine(), Date: time.Now().UTC().Truncate(time.Second)}
	for _, c := range cases {
		if o.Case != "" && o.Case != c.name {
			continue
		}
		row := row{Case: c.name, Title: c.title, Nanoseconds: map[string][]float64{}}
		for run := range o.Runs + 1 {
			for i := range sides {
				s := sides[(i+run)%len(sides)]
				ns, err := s.time(c.name, o.Calls/4*4)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", s.name, c.name, err)
				}
				if run > 0 { // the first one warms up
					row.Nanoseconds[s.name] = append(row.Nanoseconds[s.name], ns)
				}
			}
		}
		results.Rows = append(results.Rows, row)
	}
	if len(results.Rows) == 0 {
		return fmt.Errorf("no case %q", o.Case)
	}
	if err := results.write(o.Out); err != nil {
		return err
	}
	fmt.Print(results.markdown())
	return nil
}

func (o options) sides(ctx context.Context) (sides []side, err error) {
	if o.Only == "go" || o.Only == "all" {
		sides = append(sides, goSide())
	}
	if o.Only == "c++" || o.Only == "all" {
		s, err := start(ctx, "C++", o.Cpp)
		if err != nil {
			return sides, fmt.Errorf("%w; build it with cmake --build build --target calls_bench", err)
		}
		sides = append(sides, s)
	}
	if o.Only == "python" || o.Only == "all" {
		root, err := peer.Root()
		if err != nil {
			return sides, err
		}
		python, err := peer.Python(ctx, root, os.Stderr)
		if err != nil {
			return sides, err
		}
		s, err := start(ctx, "Python", python, filepath.Join(root, "bench", "calls", "calls.py"))
		if err != nil {
			return sides, err
		}
		sides = append(sides, s)
	}
	return sides, nil
}

// start runs a program that answers lines.
func start(ctx context.Context, name, program string, args ...string) (side, error) {
	cmd := peer.Command(ctx, program, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return side{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return side{}, err
	}
	if err := cmd.Start(); err != nil {
		return side{}, fmt.Errorf("the %s side: %w", name, err)
	}
	answers := bufio.NewReader(stdout)
	return side{
		name: name,
		time: func(name string, count int) (float64, error) {
			if _, err := fmt.Fprintln(stdin, name, count); err != nil {
				return 0, err
			}
			line, err := answers.ReadString('\n')
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return 0, err
			}
			return strconv.ParseFloat(strings.TrimSpace(line), 64)
		},
		end: func() error {
			_ = stdin.Close() // which ends the program
			return cmd.Wait()
		},
	}, nil
}

// write puts the results into a file as JSON.
func (r results) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
