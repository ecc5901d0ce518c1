package torch

import (
	"fmt"
	"runtime"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Finding leaks: with TrackLeaks on, each tensor records where it was made.

var (
	tracking atomic.Bool
	sites    sync.Map // *cell -> [siteDepth]uintptr
)

const siteDepth = 16

// TrackLeaks switches the recording of creation sites, for LeakReport. It costs about a microsecond per tensor. Tensors
// made while it was off are not in reports; switching it off forgets what was recorded.
func TrackLeaks(on bool) {
	tracking.Store(on)
	if !on {
		sites.Clear()
	}
}

func track(c *cell) {
	var pc [siteDepth]uintptr
	runtime.Callers(3, pc[:])
	c.tracked = true
	sites.Store(c, pc)
}

func untrack(c *cell) { sites.Delete(c) }

// LeakReport lists the live tensors that were made since TrackLeaks(true), grouped by the first line outside this package and
// package aten that led to them, most tensors first. It is empty where nothing is live.
func LeakReport() string {
	counts := map[string]int{}
	sites.Range(func(_, v any) bool {
		counts[site(v.([siteDepth]uintptr))]++
		return true
	})
	list := make([]string, 0, len(counts))
	for s := range counts {
		list = append(list, s)
	}
	sort.Slice(list, func(i, j int) bool {
		if a, b := counts[list[i]], counts[list[j]]; a != b {
			return a > b
		}
		return list[i] < list[j]
	})
	var b strings.Builder
	for _, s := range list {
		fmt.Fprintf(&b, "%6d  %s\n", counts[s], s)
	}
	return b.String()
}

// site is the innermost frame outside this package and its tests' helpers, or the outermost one recorded.
func site(pc [siteDepth]uintptr) string {
	n := 0
	for n < len(pc) && pc[n] != 0 {
		n++
	}
	frames := runtime.CallersFrames(pc[:n])
	for {
		f, more := frames.Next()
		inside := (strings.HasPrefix(f.Function, packagePath+".") || strings.HasPrefix(f.Function, packagePath+"/aten.")) && !strings.HasSuffix(f.File, "_test.go")
		if !inside || !more {
			return fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line)
		}
	}
}

const packagePath = "github.com/gofsdp/gofsdp/torch"
