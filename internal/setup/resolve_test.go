package setup

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// recordedIndex is what the package index offered of these packages when the wheels were pinned, and the requirements in
// their METADATA.
type recordedIndex map[string][]indexFile

func recorded(t *testing.T) recordedIndex {
	data, err := os.ReadFile("testdata/index.json")
	require.NoError(t, err)
	var index recordedIndex
	require.NoError(t, json.Unmarshal(data, &index))
	return index
}

func (r recordedIndex) files(_ context.Context, name string) ([]indexFile, error) {
	return r[name], nil
}

func (recordedIndex) metadata(_ context.Context, file indexFile) ([]byte, error) {
	parts := strings.SplitN(file.Filename, "-", 3)
	return os.ReadFile(filepath.Join("testdata", parts[0]+"-"+parts[1]+".METADATA"))
}

// Every pinned wheel is the one that torch's own METADATA leads to, on both architectures.
func TestPinsFollowFromTorchMetadata(t *testing.T) {
	all, err := pins()
	require.NoError(t, err)
	require.Equal(t, []string{"2.11.0", "2.12.1", "2.13.0"}, PinnedVersions())
	require.Contains(t, all, TorchVersion)
	for version, machines := range all {
		require.Len(t, machines, 2)
		for goarch, wheels := range machines {
			found, err := resolve(t.Context(), recorded(t), version, goarch)
			require.NoError(t, err)
			require.Equal(t, wheels, found, "torch %s on %s: go generate ./internal/setup", version, goarch)
			require.Len(t, wheels, 16)
			for i, w := range wheels {
				require.Regexp(t, "^[0-9a-f]{64}$", w.SHA256)
				require.Equal(t, i >= 3, w.CUDA, "%s: torch and two small wheels are for every machine", w.Name)
				require.Positive(t, w.Size)
			}
		}
		require.NotEqual(t, machines["amd64"][0].SHA256, machines["arm64"][0].SHA256)
	}
}

func TestResolveSaysWhatTheIndexLacks(t *testing.T) {
	index := recorded(t)
	_, err := resolve(t.Context(), index, "2.11.7", "amd64")
	require.ErrorContains(t, err, "no wheel of torch==2.11.7 for x86_64")
	_, err = resolve(t.Context(), index, "2.13.0", "riscv64")
	require.ErrorContains(t, err, "for riscv64")

	delete(index, "nvidia-cublas")
	_, err = resolve(t.Context(), index, "2.12.1", "amd64")
	require.ErrorContains(t, err, "requirements of torch 2.12.1: the package index has no wheel of nvidia-cublas<=13.1.1.3,>=13.1.0.3")

	index = recorded(t)
	for i := range index["nvidia-cufft"] {
		index["nvidia-cufft"][i].Hashes = nil
	}
	_, err = resolve(t.Context(), index, "2.13.0", "amd64")
	require.ErrorContains(t, err, "no SHA-256 for nvidia_cufft")

	index = recorded(t)
	for i := range index["nvidia-nvtx"] {
		index["nvidia-nvtx"][i].Yanked = "a reason"
	}
	_, err = resolve(t.Context(), index, "2.13.0", "amd64")
	require.ErrorContains(t, err, "no wheel of nvidia-nvtx")
}

func TestRequirements(t *testing.T) {
	list, err := parseRequirements([]byte("Name: x\nRequires-Dist: A.b_C [One, two-2] (>=1.0,<2) ; extra == 'x' and (os_name == \"posix\" or python_version < \"3\")\r\n" +
		"Requires-Dist: plain\n\nRequires-Dist: in the description\n"))
	require.NoError(t, err)
	require.Equal(t, []requirement{
		{name: "a-b-c", extras: []string{"one", "two-2"}, clauses: []clause{{">=", "1.0"}, {"<", "2"}},
			marker: `extra == 'x' and (os_name == "posix" or python_version < "3")`},
		{name: "plain"},
	}, list)
	for _, bad := range []string{"", "name >= ", "name @ https://example.org/x.whl", "name ==1 ==2", "-x"} {
		_, err := parseRequirement(bad)
		require.Error(t, err, "%q", bad)
	}
}

func TestMarkers(t *testing.T) {
	env := targetEnvironment("amd64")
	for marker, want := range map[string]bool{
		`platform_system == "Linux"`:                                  true,
		`sys_platform == 'win32'`:                                     false,
		`sys_platform in "linux darwin"`:                              true,
		`sys_platform not in "linux darwin"`:                          false,
		`python_version < "3.15"`:                                     true,
		`python_version >= "3.9" and python_full_version != "3.11.*"`: false,
		`"3.11" ~= python_version`:                                    true,
		`os_name != "posix" or extra == "b"`:                          true,
		`extra == "c"`:                                                false,
		`(sys_platform == 'linux' and platform_machine == 'aarch64' or sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'a'`: true,
	} {
		got, err := requirement{name: "x", marker: marker}.applies(env, []string{"a", "b"})
		require.NoError(t, err, marker)
		require.Equal(t, want, got, marker)
	}
	for _, bad := range []string{`platform_system`, `nonsense == "x"`, `(os_name == "posix"`, `os_name == "posix" os_name`, `os_name = "posix"`, `and`, `)`} {
		_, err := requirement{name: "x", marker: bad}.applies(env, nil)
		require.ErrorContains(t, err, "of x", bad)
	}
}

func TestVersions(t *testing.T) {
	ordered := []string{"no version", "1.0.dev1", "1.0a1", "1.0b2", "1.0rc1", "1.0", "1.0.post1", "1.0.1", "1.2", "1.10", "13.1.1.3"}
	for i, a := range ordered {
		for j, b := range ordered {
			require.Equal(t, sign(i-j), compareVersions(a, b), "%s and %s", a, b)
		}
	}
	require.Zero(t, compareVersions("13.0", "13.0.0"))
	for _, v := range ordered {
		require.Equal(t, compareVersions(v, "1.0") < 0, isPreRelease(v), v)
	}
	for text, versions := range map[string]map[string]bool{
		"==13.1.1.3.*": {"13.1.1.3": true, "13.1.1.3.5": true, "13.1.1.30": false, "13.1.1": false},
		"==2.13.0":     {"2.13.0+cpu": true, "2.13": true, "2.13.1": false},
		"!=2.*":        {"2.1": false, "3.0": true},
		"~=1.4.2":      {"1.4.9": true, "1.4.1": false, "1.5": false},
		"<14":          {"13.9": true, "14.0": false},
		">13":          {"13.0": false, "13.0.1": true},
		"===1.0":       {"1.0": true, "1.0.0": false},
	} {
		r, err := parseRequirement("x" + text)
		require.NoError(t, err)
		for version, want := range versions {
			require.Equal(t, want, r.clauses[0].holds(version), "%s %s", version, text)
		}
	}
}

func sign(n int) int { return min(1, max(-1, n)) }

// Whatever a METADATA says, it gives requirements or an error.
func FuzzRequirements(f *testing.F) {
	for _, version := range []string{"torch-2.13.0", "cuda_toolkit-13.0.3.0"} {
		data, err := os.ReadFile("testdata/" + version + ".METADATA")
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseRequirements(data)
		if err != nil {
			return
		}
		for _, r := range list {
			_, _ = r.applies(targetEnvironment("arm64"), r.extras)
			for _, c := range r.clauses {
				c.holds("1.2.3")
			}
		}
	})
}

func TestVersionOrderIsTotal(t *testing.T) {
	version := rapid.StringMatching(`[0-3](\.[0-3]){0,2}((a|rc)[0-2])?(\.post[0-2])?(\.dev[0-2])?`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := version.Draw(t, "a"), version.Draw(t, "b"), version.Draw(t, "c")
		if compareVersions(a, b) != -compareVersions(b, a) {
			t.Fatalf("%s and %s", a, b)
		}
		if compareVersions(a, b) <= 0 && compareVersions(b, c) <= 0 && compareVersions(a, c) > 0 {
			t.Fatalf("%s <= %s <= %s", a, b, c)
		}
	})
}

// serve is a package index in the JSON form of the simple API, over a folder of wheels.
func serve(t *testing.T, dir string, ranges bool) *webIndex {
	mux := http.NewServeMux()
	mux.HandleFunc("/simple/{name}/", func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "application/vnd.pypi.simple.v1+json", r.Header.Get("Accept"))
		files, err := folderIndex(dir).files(r.Context(), r.PathValue("name"))
		if err != nil || len(files) == 0 {
			http.NotFound(w, r)
			return
		}
		for i := range files {
			files[i].URL = "../../wheels/" + files[i].Filename
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"files": files})
	})
	mux.HandleFunc("/wheels/{file}", func(w http.ResponseWriter, r *http.Request) {
		if !ranges {
			r.Header.Del("Range")
		}
		http.ServeFile(w, r, filepath.Join(dir, r.PathValue("file")))
	})
	mux.HandleFunc("/text/{name}/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return &webIndex{base: server.URL + "/simple", client: &http.Client{Timeout: 10 * time.Second}}
}

// A version that is not pinned is looked up in the index, and the hashes that were found hold from then on.
func TestUnpinnedVersionIsLookedUpAndNoted(t *testing.T) {
	wheels := t.TempDir()
	torch := torchFiles()
	torch["torch-2.12.0.dist-info/METADATA"] = "Name: torch\n" +
		"Requires-Dist: cuda-toolkit[cudart,nvtx]==13.0.2; platform_system == \"Linux\"\nRequires-Dist: sympy\n" +
		"Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == \"Linux\"\n"
	torch["padding"] = strings.Repeat("x", 3*remoteBlock)
	makeWheel(t, wheels, "torch", "2.12.0", torch)
	makeWheel(t, wheels, "cuda-toolkit", "13.0.2", map[string]string{"cuda_toolkit-13.0.2.dist-info/METADATA": "Name: cuda-toolkit\n" +
		"Requires-Dist: nvidia-cuda-runtime==13.0.96.*; extra == 'cudart'\nRequires-Dist: nvidia-nvtx==13.0.85.*; extra == 'nvtx'\n"})
	for _, w := range [][2]string{{"nvidia-cuda-runtime", "13.0.96"}, {"nvidia-nvtx", "13.0.85"}, {"nvidia-nccl-cu13", "2.29.7"}} {
		makeWheel(t, wheels, w[0], w[1], map[string]string{"nvidia/cu13/lib/lib" + w[0] + ".so": "x"})
	}
	var names []string
	for _, ranges := range []bool{true, false} {
		found, err := resolve(t.Context(), serve(t, wheels, ranges), "2.12.0", "amd64")
		require.NoError(t, err)
		fromFolder, err := resolve(t.Context(), folderIndex(wheels), "2.12.0", "amd64")
		require.NoError(t, err)
		require.Equal(t, fromFolder, found)
		names = nil
		for _, w := range found {
			names = append(names, w.Name+" "+w.Version)
		}
	}
	require.Equal(t, []string{"torch 2.12.0", "nvidia-cuda-runtime 13.0.96", "nvidia-nvtx 13.0.85", "nvidia-nccl-cu13 2.29.7"}, names)

	o, _, out := fixture(t)
	o.wheels, o.Wheels, o.TorchVersion = nil, wheels, "2.12.0"
	first, err := o.chooseWheels(t.Context(), true)
	require.NoError(t, err)
	require.Len(t, first, 4)
	require.Contains(t, out.String(), "libtorch 2.12.0 is not pinned (2.11.0, 2.12.1, 2.13.0 are)")
	makeWheel(t, wheels, "nvidia-nvtx", "13.0.85", map[string]string{"changed": ""})
	again, err := o.chooseWheels(t.Context(), true)
	require.NoError(t, err)
	require.Equal(t, first, again, "the noted hashes, not those of the new file")
	cpu, err := o.chooseWheels(t.Context(), false)
	require.NoError(t, err)
	require.Len(t, cpu, 2)
	require.NoError(t, os.WriteFile(filepath.Join(o.Cache, "libtorch/2.12.0-wheels.json"), []byte("{"), 0o644))
	_, err = o.chooseWheels(t.Context(), true)
	require.ErrorContains(t, err, "remove it")
}

func TestIndexFailures(t *testing.T) {
	index := serve(t, t.TempDir(), true)
	files, err := index.files(t.Context(), "nothing")
	require.NoError(t, err)
	require.Empty(t, files)
	index.base = strings.TrimSuffix(index.base, "simple") + "text"
	_, err = index.files(t.Context(), "torch")
	require.ErrorContains(t, err, "no page of the simple API in JSON")
	_, err = index.metadata(t.Context(), indexFile{Filename: "torch.whl", URL: index.base + "/../none", Size: 10})
	require.ErrorContains(t, err, "404")
	index.base = "http://127.0.0.1:1"
	_, err = index.files(t.Context(), "torch")
	require.ErrorContains(t, err, "check the network")
}
