package capi

import (
	"path/filepath"
	"runtime/debug"
	"strings"
)

const modulePath = "github.com/gofsdp/gofsdp"

// setupCommand is what to type to build the library. In a service that embeds this module it names the version, because
// `go run` without one needs go.sum to know the command's own dependencies.
func setupCommand() string {
	module := thisModule()
	if module.Version == "" || module.Path != modulePath {
		return "`make build` (or `gofsdp setup`)"
	}
	return "`go run " + modulePath + "/cmd/gofsdp@" + module.Version + " setup` (or `gofsdp setup`)"
}

// moduleName is the folder that Go's module cache gives the version of this module in the program that runs, such as
// gofsdp@v1.2.3, or "" where it is a work copy.
func moduleName() string {
	module := thisModule()
	if module.Version == "" {
		return ""
	}
	return filepath.Base(module.Path) + "@" + module.Version
}

// thisModule is this module, or what replaces it, as the program that runs was built from it. The version is empty where it
// is a work copy.
func thisModule() debug.Module {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return debug.Module{}
	}
	for _, module := range append(info.Deps, &info.Main) {
		if module.Path != modulePath {
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		// A work copy has no version, or one that Go makes up from the state of its repository.
		if strings.HasPrefix(module.Version, "v") && module.Sum != "" {
			return *module
		}
	}
	return debug.Module{}
}
