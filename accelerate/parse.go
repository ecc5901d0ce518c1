package accelerate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const fsdpPrefix = "fsdp_"

// Keys of the file whose values we check but do not need.
var ignoredKeys = []string{
	"compute_environment", "same_network", "main_training_function", "rdzv_backend", "enable_cpu_affinity",
	"downcast_bf16", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "tpu_name", "tpu_zone", "command_file", "commands",
}

// Keys whose feature gofsdp does not have: they are accepted while they are empty, off, or at their default.
var refusedKeys = map[string]string{
	"deepspeed_config":   "DeepSpeed",
	"megatron_lm_config": "Megatron-LM",
	"fp8_config":         "8-bit floats",
	"parallelism_config": "other kinds of parallelism than sharded data",
	"mpirun_config":      "starting mpirun (run `mpirun gofsdp …` instead)",
	"dynamo_config":      "torch.compile",
	"dynamo_backend":     "torch.compile",
}

var usedKeys = []string{
	"distributed_type", "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
	"mixed_precision", "fp16", "use_cpu", "debug", "gpu_ids", "fsdp_config",
}

// kind is what an FSDP option may hold: one of some names, or else what it says, or else any text.
type kind struct {
	boolean  bool
	number   bool
	names    []string
	numbered []string // names that may be told by their number, from 1, as torch's enumerations have them
}

func oneOf(names ...string) kind { return kind{names: names} }

var (
	shardingStrategies = []string{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"}
	stateDictTypes     = []string{"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"}
	prefetch           = oneOf("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
	boolean            = kind{boolean: true}

	fsdpKeys = map[string]kind{
		"fsdp_version":                          oneOf("1", "2"),
		"fsdp_sharding_strategy":                {names: shardingStrategies, numbered: shardingStrategies},
		"fsdp_reshard_after_forward":            {boolean: true, number: true, names: shardingStrategies},
		"fsdp_offload_params":                   boolean,
		"fsdp_auto_wrap_policy":                 oneOf("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
		"fsdp_transformer_layer_cls_to_wrap":    {},
		"fsdp_min_num_params":                   {number: true},
		"fsdp_backward_prefetch":                prefetch,
		"fsdp_forward_prefetch":                 boolean,
		"fsdp_state_dict_type":                  {names: stateDictTypes, numbered: stateDictTypes},
		"fsdp_use_orig_params":                  boolean,
		"fsdp_cpu_ram_efficient_loading":        boolean,
		"fsdp_sync_module_states":               boolean,
		"fsdp_activation_checkpointing":         boolean,
		"fsdp_activation_checkpointing_offload": boolean,
		"fsdp_ignored_modules":                  {},
		"fsdp_limit_all_gathers":                boolean,
	}
)

// otherNames are those that older files and TrainingArguments give to options.
var otherNames = map[string]string{
	"fsdp_backward_prefetch_policy": "fsdp_backward_prefetch",
	"fsdp_cpu_offload":              "fsdp_offload_params",
}

// refusedOptions are those of TrainingArguments' fsdp_config whose feature gofsdp does not have.
var refusedOptions = map[string]string{"xla": "XLA", "xla_fsdp_v2": "XLA", "xla_fsdp_grad_ckpt": "XLA", "xla_fsdp_settings": "XLA"}

// Error is a fault at a place in the file.
type Error struct {
	Line, Column int
	Key          string // the dotted path of the key, or ""
	Problem      string
}

func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Problem)
	}
	return fmt.Sprintf("line %d, column %d: %s: %s", e.Line, e.Column, e.Key, e.Problem)
}

// Parse reads a file's text. All faults are reported together, each an *Error.
func Parse(data []byte) (*Config, error) { return parse(data, (*parsing).root) }

// ParseFSDP reads a file that holds only the options of FSDP, as TrainingArguments' fsdp_config names one: JSON or YAML,
// from keys with or without their prefix to values. The Config has nothing else. Where reshard_after_forward means something
// in version 2 only and no version is given, it is 2.
func ParseFSDP(data []byte) (*Config, error) {
	return parse(data, func(p *parsing, n ast.Node) {
		p.fsdp(n)
		_, told := p.FSDPOption("version")
		if reshard, ok := p.FSDPOption("reshard_after_forward"); ok && !told && !slices.Contains(shardingStrategies, reshard) {
			p.FSDP = append(p.FSDP, Option{"fsdp_version", "2"})
		}
	})
}

func parse(data []byte, read func(*parsing, ast.Node)) (c *Config, err error) {
	defer func() { // the YAML parser has panicked on malformed text before
		if r := recover(); r != nil {
			c, err = nil, fmt.Errorf("malformed YAML: %v", r)
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, fmt.Errorf("malformed YAML: %w", err)
	}
	p := &parsing{}
	root := emptyMapping
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.NullType || doc.Body.Type() == ast.CommentType {
			continue
		}
		if root != emptyMapping {
			return nil, errors.New("more than one YAML document")
		}
		root = doc.Body
	}
	read(p, root)
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &p.Config, nil
}

var emptyMapping ast.Node = &ast.MappingNode{}

type parsing struct {
	Config
	faults []error
}

func (p *parsing) fault(t *token.Token, key, format string, args ...any) {
	e := &Error{Key: key, Problem: fmt.Sprintf(format, args...)}
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	p.faults = append(p.faults, e)
}

// pairs returns the entries of a mapping, in order.
func (p *parsing) pairs(n ast.Node, key string) []*ast.MappingValueNode {
	var list []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		list = n.Values
	case *ast.MappingValueNode:
		list = []*ast.MappingValueNode{n}
	default:
		p.fault(n.GetToken(), key, "want a mapping of keys to values")
	}
	seen := map[string]bool{}
	for _, pair := range list {
		name := keyName(pair)
		if seen[name] {
			p.fault(pair.Key.GetToken(), name, "appears twice")
		}
		seen[name] = true
	}
	return list
}

func keyName(pair *ast.MappingValueNode) string {
	if t := pair.Key.GetToken(); t != nil {
		return t.Value
	}
	return ""
}

func (p *parsing) root(n ast.Node) {
	for _, pair := range p.pairs(n, "") {
		key, v := keyName(pair), pair.Value
		if key == "fsdp_config" {
			if !isEmpty(v) {
				p.fsdp(v)
			}
			continue
		}
		if feature, ok := refusedKeys[key]; ok {
			if !isOff(v) {
				p.fault(v.GetToken(), key, "gofsdp does not do %s; remove the key", feature)
			}
			continue
		}
		if slices.Contains(ignoredKeys, key) {
			p.ignored(key, v)
			continue
		}
		if v.Type() == ast.NullType {
			if !slices.Contains(usedKeys, key) {
				p.unknown(pair, key, usedKeys)
			}
			continue
		}
		switch key {
		case "distributed_type":
			p.DistributedType = p.choice(key, v, oneOf("NO", "MULTI_CPU", "MULTI_GPU", "FSDP"))
		case "num_processes":
			if p.NumProcesses = p.integer(key, v); p.NumProcesses == -1 {
				p.NumProcesses = 0 // Accelerate's way to leave it to the command line
			}
		case "num_machines":
			p.NumMachines = p.integer(key, v)
		case "machine_rank":
			p.MachineRank = p.integer(key, v)
		case "main_process_ip":
			p.MainProcessIP = p.text(key, v)
		case "main_process_port":
			p.MainProcessPort = p.integer(key, v)
		case "mixed_precision":
			p.MixedPrecision = strings.ToLower(p.text(key, v))
			if isNo(v) { // YAML 1.1 reads an unquoted no as false
				p.MixedPrecision = "no"
			}
		case "fp16": // files of before mixed_precision
			if p.boolean(key, v) == "True" && p.MixedPrecision == "" {
				p.MixedPrecision = "fp16"
			}
		case "use_cpu":
			p.UseCPU = p.boolean(key, v) == "True"
		case "debug":
			p.Debug = p.boolean(key, v) == "True"
		case "gpu_ids":
			p.GPUIDs = strings.ReplaceAll(p.text(key, v), " ", "")
		default:
			p.unknown(pair, key, usedKeys)
		}
	}
}

// ignored checks those of the unused keys that would mean something else than what we do.
func (p *parsing) ignored(key string, v ast.Node) {
	if isEmpty(v) {
		return
	}
	switch key {
	case "compute_environment":
		p.choice(key, v, oneOf("LOCAL_MACHINE"))
	case "rdzv_backend":
		if s := p.text(key, v); s != "static" {
			p.fault(v.GetToken(), key, "%q needs torchrun: start with `torchrun --no-python --rdzv_backend %s`, or use static", s, s)
		}
	case "tpu_use_cluster", "tpu_use_sudo", "tpu_name":
		if !isNo(v) {
			p.fault(v.GetToken(), key, "gofsdp does not run on TPUs; remove the key")
		}
	}
}

func (p *parsing) fsdp(n ast.Node) {
	for _, pair := range p.pairs(n, "fsdp_config") {
		written := keyName(pair)
		key := fsdpPrefix + strings.TrimPrefix(written, fsdpPrefix)
		path := "fsdp_config." + written
		if feature, ok := refusedOptions[written]; ok {
			if !isOff(pair.Value) {
				p.fault(pair.Value.GetToken(), path, "gofsdp does not do %s; remove the key", feature)
			}
			continue
		}
		if other, ok := otherNames[key]; ok {
			key = other
		}
		want, ok := fsdpKeys[key]
		if !ok {
			names := slices.Sorted(maps.Keys(fsdpKeys))
			if !strings.HasPrefix(written, fsdpPrefix) {
				for i, name := range names {
					names[i] = strings.TrimPrefix(name, fsdpPrefix)
				}
			}
			p.unknown(pair, path, names)
			continue
		}
		if pair.Value.Type() == ast.NullType {
			continue // Accelerate writes null for "not told"
		}
		if _, twice := p.FSDPOption(key); twice {
			p.fault(pair.Key.GetToken(), path, "is there twice: with and without its prefix, or under another name")
			continue
		}
		p.FSDP = append(p.FSDP, Option{key, p.choice(path, pair.Value, want)})
	}
}

func (p *parsing) unknown(pair *ast.MappingValueNode, key string, known []string) {
	name := key[strings.LastIndexByte(key, '.')+1:]
	if !strings.Contains(key, ".") {
		for refused := range refusedKeys {
			known = append(known[:len(known):len(known)], refused)
		}
		known = append(known, ignoredKeys...)
		slices.Sort(known)
	}
	hint := ""
	if near := nearest(name, known); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", near)
	}
	p.fault(pair.Key.GetToken(), key, "unknown key%s", hint)
}

// scalar returns the text of a scalar, or of a list of scalars joined by commas.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.SequenceNode:
		var items []string
		for _, item := range n.Values {
			s, ok := scalar(item)
			if !ok {
				return "", false
			}
			items = append(items, s)
		}
		return strings.Join(items, ","), true
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func (p *parsing) text(key string, n ast.Node) string {
	s, ok := scalar(n)
	if !ok {
		p.fault(n.GetToken(), key, "want a value, not a structure")
	}
	return strings.TrimSpace(s)
}

func (p *parsing) integer(key string, n ast.Node) int {
	s := p.text(key, n)
	i, ok := whole(s)
	if !ok {
		p.fault(n.GetToken(), key, "%q is not a whole number", s)
	}
	return i
}

// whole reads a whole number, also as 1_000 and 1e8, as the documentation of fsdp_min_num_params writes it.
func whole(s string) (int, bool) {
	s = strings.ReplaceAll(s, "_", "")
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return int(i), true
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && f == float64(int64(f)) && f < 1<<53 && f > -(1<<53) {
		return int(f), true
	}
	return 0, false
}

// truth returns True or False for any of the words that YAML 1.1 and Accelerate take, and "" for others.
func truth(word string) string {
	switch strings.ToLower(word) {
	case "true", "yes", "y", "t", "on", "1":
		return "True"
	case "false", "no", "n", "f", "off", "0":
		return "False"
	}
	return ""
}

func (p *parsing) boolean(key string, n ast.Node) string { return p.choice(key, n, boolean) }

func (p *parsing) choice(key string, n ast.Node, want kind) string {
	if isNo(n) && slices.Contains(want.names, "NO") { // an unquoted NO
		return "NO"
	}
	value, problem := want.read(p.text(key, n))
	if problem != "" {
		p.fault(n.GetToken(), key, "%s", problem)
	}
	return value
}

// read returns a value as Accelerate would print it, or what is wrong with it.
func (k kind) read(s string) (value, problem string) {
	for _, name := range k.names {
		if strings.EqualFold(s, name) {
			return name, ""
		}
	}
	if k.boolean && truth(s) != "" {
		return truth(s), ""
	}
	i, isNumber := whole(s)
	switch {
	case isNumber && i >= 1 && i <= len(k.numbered):
		return k.numbered[i-1], ""
	case isNumber && k.number && (k.names == nil || i > 0):
		return strconv.Itoa(i), ""
	case k.number && k.names == nil:
		return "", fmt.Sprintf("%q is not a whole number", s)
	case k.boolean && k.names == nil:
		return "", fmt.Sprintf("%q is neither true nor false", s)
	case k.names == nil:
		return s, ""
	}
	names := k.names
	if k.boolean {
		names = append([]string{"true", "false"}, names...)
	}
	if k.number {
		names = append([]string{"a number of ranks"}, names...)
	}
	hint := ""
	if near := nearest(strings.ToUpper(s), names); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", near)
	}
	return "", fmt.Sprintf("%q is none of %s%s", s, strings.Join(names, ", "), hint)
}

func isNo(n ast.Node) bool {
	s, ok := scalar(n)
	return ok && slices.Contains([]string{"no", "false", "off", "n"}, strings.ToLower(s))
}

// isOff reports whether a feature is empty, or its settings all say no.
func isOff(n ast.Node) bool {
	if m, ok := n.(*ast.MappingNode); ok {
		for _, pair := range m.Values {
			if !isOff(pair.Value) {
				return false
			}
		}
		return true
	}
	return isEmpty(n) || isNo(n)
}

// isEmpty reports whether a value is null, {}, [] or "".
func isEmpty(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.NullNode:
		return true
	case *ast.MappingNode:
		return len(n.Values) == 0
	case *ast.SequenceNode:
		return len(n.Values) == 0
	}
	s, ok := scalar(n)
	return ok && s == ""
}

// nearest returns the candidate with the fewest edits to name, if there are few.
func nearest(name string, candidates []string) string {
	if len(name) > 60 {
		return ""
	}
	best, bestEdits := "", max(len(name)/3, 2)+1
	for _, c := range candidates {
		if d := edits(name, c); d < bestEdits {
			best, bestEdits = c, d
		}
	}
	return best
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
