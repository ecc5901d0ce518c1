package setup

import (
	"context"
	"encoding/json"
	"fmt"
)

// Pin looks up the wheels of the given versions of torch for both architectures in the package index that pip is
// configured for, and returns the text of pins.json.
func Pin(ctx context.Context, versions ...string) ([]byte, error) {
	from := newWebIndex(ctx, defaultPip())
	all := map[string]map[string][]wheel{}
	for _, version := range versions {
		all[version] = map[string][]wheel{}
		for _, goarch := range []string{"amd64", "arm64"} {
			wheels, err := resolve(ctx, from, version, goarch)
			if err != nil {
				return nil, fmt.Errorf("pin torch %s for %s: %w", version, goarch, err)
			}
			all[version][goarch] = wheels
		}
	}
	text, err := json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}

func defaultPip() []string { return []string{"python3", "-m", "pip"} }
