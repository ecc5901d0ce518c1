package setup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// indexFile is one file that a package index offers.
type indexFile struct {
	Filename string            `json:"filename"`
	URL      string            `json:"url"`
	Hashes   map[string]string `json:"hashes"`
	Size     int64             `json:"size"`
	Yanked   any               `json:"yanked"` // false, true or the reason
}

// index is where wheels come from: a package index, or a folder of wheels.
type index interface {
	// files lists the files of the package name; none is no error.
	files(ctx context.Context, name string) ([]indexFile, error)
	// metadata reads the METADATA of one wheel.
	metadata(ctx context.Context, file indexFile) ([]byte, error)
}

// resolve returns the wheels of libtorch version on a machine goarch: torch, and what its METADATA asks for of
// NVIDIA's libraries. Of a range it takes the newest version, as pip does. The Python packages that torch needs are
// left out, and the requirements of NVIDIA's own wheels are not read: torch names all of them.
func resolve(ctx context.Context, from index, version, goarch string) ([]wheel, error) {
	env := targetEnvironment(goarch)
	torch, file, err := pick(ctx, from, "torch", []clause{{"==", version}}, goarch)
	if err != nil {
		return nil, err
	}
	needed := needs{clauses: map[string][]clause{}}
	if err := needed.add(ctx, from, file, env, nil, goarch); err != nil {
		return nil, fmt.Errorf("requirements of torch %s: %w", version, err)
	}
	wheels := []wheel{torch}
	for _, name := range needed.names {
		w, _, err := pick(ctx, from, name, needed.clauses[name], goarch)
		if err != nil {
			return nil, fmt.Errorf("requirements of torch %s: %w", version, err)
		}
		w.CUDA = !slices.ContainsFunc(cpuWheels, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		wheels = append(wheels, w)
	}
	// What every machine needs comes first.
	slices.SortStableFunc(wheels, func(a, b wheel) int { return cmp.Compare(btoi(a.CUDA), btoi(b.CUDA)) })
	return wheels, nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// needs are the packages to install, in the order in which they were asked for, with everybody's conditions.
type needs struct {
	names   []string
	clauses map[string][]clause
}

// add reads the requirements of a wheel. A cuda-toolkit package holds no files, but names NVIDIA's wheels, one extra
// for each.
func (n *needs) add(ctx context.Context, from index, file indexFile, env environment, extras []string, goarch string) error {
	metadata, err := from.metadata(ctx, file)
	if err != nil {
		return err
	}
	list, err := parseRequirements(metadata)
	if err != nil {
		return fmt.Errorf("%s: %w", file.Filename, err)
	}
	for _, r := range list {
		toolkit := r.name == "cuda-toolkit"
		if !toolkit && !strings.HasPrefix(r.name, "nvidia-") {
			continue
		}
		if ok, err := r.applies(env, extras); err != nil {
			return fmt.Errorf("%s: %w", file.Filename, err)
		} else if !ok {
			continue
		}
		if toolkit {
			_, file, err := pick(ctx, from, r.name, r.clauses, goarch)
			if err != nil {
				return err
			}
			if err := n.add(ctx, from, file, env, r.extras, goarch); err != nil {
				return err
			}
			continue
		}
		if !slices.Contains(n.names, r.name) {
			n.names = append(n.names, r.name)
		}
		n.clauses[r.name] = append(n.clauses[r.name], r.clauses...)
	}
	return nil
}

// pick chooses the newest version that satisfies every clause and has a wheel for goarch.
func pick(ctx context.Context, from index, name string, clauses []clause, goarch string) (wheel, indexFile, error) {
	files, err := from.files(ctx, name)
	if err != nil {
		return wheel{}, indexFile{}, err
	}
	var best indexFile
	version, rank := "", -1
	for _, f := range files {
		v, r, ok := wheelFits(f.Filename, goarch)
		yanked := f.Yanked != nil && f.Yanked != false
		if !ok || yanked || slices.ContainsFunc(clauses, func(c clause) bool { return !c.holds(v) }) ||
			isPreRelease(v) && !slices.ContainsFunc(clauses, func(c clause) bool { return isPreRelease(c.version) }) {
			continue
		}
		if newer := compareVersions(v, version); version == "" || newer > 0 || newer == 0 && r > rank {
			best, version, rank = f, v, r
		}
	}
	if version == "" {
		return wheel{}, indexFile{}, fmt.Errorf("the package index has no wheel of %s%s for %s among %d files",
			name, joinClauses(clauses), machineName(goarch), len(files))
	}
	sum := best.Hashes["sha256"]
	if len(sum) != 64 {
		return wheel{}, indexFile{}, fmt.Errorf("the package index gives no SHA-256 for %s", best.Filename)
	}
	return wheel{Name: name, Version: version, SHA256: sum, Size: best.Size}, best, nil
}

// wheelFits splits the name of a wheel file into its version and how well its tags suit goarch and the Python that
// pip is told about; ok is false for what is no such wheel.
func wheelFits(filename, goarch string) (version string, rank int, ok bool) {
	stem, isWheel := strings.CutSuffix(filename, ".whl")
	parts := strings.Split(stem, "-")
	if !isWheel || len(parts) < 5 {
		return "", 0, false
	}
	python, abi, platform := parts[len(parts)-3], parts[len(parts)-2], parts[len(parts)-1]
	anyOf := func(tags string, want ...string) bool {
		return slices.ContainsFunc(strings.Split(tags, "."), func(tag string) bool { return slices.Contains(want, tag) })
	}
	if !anyOf(python, "py3", "cp311") || !anyOf(abi, "none", "abi3", "cp311") {
		return "", 0, false
	}
	for i, tag := range append([]string{"any"}, pipPlatforms(goarch)...) {
		if anyOf(platform, tag) {
			return parts[1], 1000 - i, true
		}
	}
	return "", 0, false
}

func joinClauses(clauses []clause) string {
	var text []string
	for _, c := range clauses {
		text = append(text, c.String())
	}
	return strings.Join(text, ",")
}
