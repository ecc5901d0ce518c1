package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"

	"github.com/gofsdp/gofsdp/internal/setup"
	"github.com/gofsdp/gofsdp/torch"
)

// doctorCmd is `gofsdp doctor`.
type doctorCmd struct{}

// Run prints one line per thing that gofsdp needs. It fails if something is missing.
func (*doctorCmd) Run(ctx context.Context) error {
	missing := 0
	line := func(name, found string, err error) {
		if err != nil {
			missing++
			found = "MISSING: " + err.Error()
		}
		fmt.Printf("%-18s %s\n", name, found)
	}
	line("machine", fmt.Sprintf("%s/%s, %d CPUs", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), nil)
	driver := "none: training runs on CPUs"
	if setup.HasNVIDIADriver() {
		driver = "found"
	}
	line("NVIDIA driver", driver, nil)
	state, err := setup.ReadState("")
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("not set up; run gofsdp setup")
	}
	if err == nil {
		_, err = os.Stat(state.TorchDir)
	}
	line("libtorch", state.TorchVersion+" "+state.TorchDir, err)
	library := state.Library
	if explicit := os.Getenv("GOFSDP_LIB"); explicit != "" {
		library = explicit
	}
	if err == nil {
		_, err = os.Stat(library)
	}
	line("shim", library, err)
	if err == nil {
		var text string
		text, err = torch.Versions()
		text, _, _ = strings.Cut(text, "\n")
		line("libtorch loads", text, err)
	}
	for _, tool := range setup.Tools(ctx) {
		if err == nil && tool.Err != nil { // everything is built: tools are for the next set-up only
			line(tool.Name, fmt.Sprintf("not usable (%v); only set-up needs it", tool.Err), nil)
			continue
		}
		line(tool.Name, tool.Version, tool.Err)
	}
	if missing > 0 {
		return fmt.Errorf("doctor: %d of the above are missing", missing)
	}
	return nil
}
