package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// Tool is a program that set-up needs.
type Tool struct {
	Name    string   // how it is called in messages
	Purpose string   // what it is for
	Apt     []string // Debian packages that hold it
	Version string   // what was found, for a report
	Err     error    // why it will not do; nil if it will

	check func(context.Context) (version string, err error)
}

func buildTools() []Tool {
	return []Tool{
		{Name: "go", Purpose: "builds the programs", Apt: []string{"golang-go"}, check: checkGo},
		{Name: compiler(), Purpose: "compiles the shim (C++20)", Apt: []string{"g++"}, check: checkCompiler},
		{Name: "cmake", Purpose: "builds the shim (3.20 or later)", Apt: []string{"cmake"}, check: checkCMake},
		{Name: "make", Purpose: "runs the compiler for cmake", Apt: []string{"make"}, check: checkMake},
	}
}

func (o *Options) downloadTools() []Tool {
	return []Tool{{Name: "python3 with pip", Purpose: "downloads libtorch", Apt: []string{"python3", "python3-pip"},
		check: func(ctx context.Context) (string, error) {
			out, err := firstLine(ctx, o.pip[0], append(o.pip[1:len(o.pip):len(o.pip)], "--version")...)
			return out, err
		}}}
}

// Tools reports on every program that set-up may need.
func Tools(ctx context.Context) []Tool {
	o := Options{pip: defaultPip()}
	tools := append(buildTools(), o.downloadTools()...)
	for i := range tools {
		tools[i].Version, tools[i].Err = tools[i].check(ctx)
	}
	return tools
}

// checkTools returns one error that names every tool that is missing and the command that installs them all.
func checkTools(ctx context.Context, tools []Tool) error {
	var missing, packages []string
	for _, tool := range tools {
		if _, err := tool.check(ctx); err != nil {
			missing = append(missing, fmt.Sprintf("%s, which %s: %v", tool.Name, tool.Purpose, err))
			packages = append(packages, tool.Apt...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("missing: %s. On Debian or Ubuntu: %s", strings.Join(missing, "; "), aptCommand(packages))
}

func aptCommand(packages []string) string {
	command := "apt-get install -y " + strings.Join(packages, " ")
	if os.Geteuid() != 0 {
		command = "sudo " + command
	}
	return command
}

func compiler() string {
	if cxx := os.Getenv("CXX"); cxx != "" {
		return cxx
	}
	return "g++"
}

func checkGo(ctx context.Context) (string, error) { return firstLine(ctx, "go", "version") }

func checkMake(ctx context.Context) (string, error) {
	if generator := os.Getenv("CMAKE_GENERATOR"); strings.HasPrefix(generator, "Ninja") {
		return firstLine(ctx, "ninja", "--version")
	}
	return firstLine(ctx, "make", "--version")
}

func checkCompiler(ctx context.Context) (string, error) {
	version, err := firstLine(ctx, compiler(), "--version")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, compiler(), "-std=c++20", "-fsyntax-only", "-x", "c++", "-")
	cmd.Stdin = strings.NewReader("#include <concepts>\n#include <span>\nstd::span<int> s; static_assert(std::integral<int>);\n")
	if err := cmd.Run(); err != nil {
		return version, fmt.Errorf("%s does not compile C++20 (GCC 11 and Clang 14 do)", version)
	}
	return version, nil
}

func checkCMake(ctx context.Context) (string, error) {
	version, err := firstLine(ctx, "cmake", "--version")
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`(\d+)\.(\d+)`).FindStringSubmatch(version)
	if found == nil {
		return version, fmt.Errorf("cannot read its version from %q", version)
	}
	major, _ := strconv.Atoi(found[1])
	minor, _ := strconv.Atoi(found[2])
	if major < 3 || major == 3 && minor < 20 {
		return version, fmt.Errorf("%s is too old, 3.20 is needed", version)
	}
	return version, nil
}

// firstLine runs a program and returns the first line that it prints.
func firstLine(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("not found in PATH")
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		message, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return "", fmt.Errorf("%w: %s", err, message)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line, err
}
