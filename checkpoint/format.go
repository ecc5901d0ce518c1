package checkpoint

import (
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/modelio/dcp"
	"github.com/gofsdp/gofsdp/torch/nn"
	"github.com/gofsdp/gofsdp/torch/optim"
)

// Format is how the tensors of a checkpoint are stored.
type Format int

// The formats. The zero value is the format that this package recommends.
const (
	// Safetensors writes a safetensors file per rank and kind, with DCP_SHARDING_INFO.
	Safetensors Format = iota
	// DCP writes the folders pytorch_model_fsdp_0 and optimizer_0 of torch.distributed.checkpoint, named and laid out as by
	// Accelerate and the Trainer of transformers, so that a run can go on in PyTorch.
	DCP
)

// Folders of PyTorch's format, named by Accelerate.
const (
	dcpModel     = "pytorch_model_fsdp_0"
	dcpOptimizer = "optimizer_0"
)

// folder is where the files of a kind are.
func (f Format) folder(k Kind) string {
	switch {
	case f == DCP && k == Model:
		return dcpModel
	case f == DCP && k == Optimizer:
		return dcpOptimizer
	}
	return string(k)
}

// uses tells whether files of a kind are PyTorch's: the state of a rank never is.
func (f Format) uses(k Kind) bool { return f == DCP && k != RankState }

// Group is a parameter group of an optimiser as PyTorch writes it: the names of its parameters, and its settings. Only the
// format DCP stores it, for PyTorch, which does not load an optimiser without.
type Group struct {
	Params   []string
	Settings []Setting
}

// Setting is a setting of a Group. Value is a float64, bool, int64, string, nil, or a []float64, which becomes a tuple.
type Setting struct {
	Name  string
	Value any
}

// AdamWGroups describes the groups of an AdamW optimiser that was made with c. named gives the parameters' names.
func AdamWGroups(o optim.Optimizer, named []nn.Named, c optim.AdamConfig) ([]Group, error) {
	names := make(map[*nn.Param]string, len(named))
	for _, n := range named {
		names[n.Param] = n.Name
	}
	for _, d := range []struct {
		value *float64
		zero  float64
	}{{&c.Beta1, 0.9}, {&c.Beta2, 0.999}, {&c.Eps, 1e-8}} {
		if *d.value == 0 {
			*d.value = d.zero
		}
	}
	var groups []Group
	for _, g := range o.Groups() {
		group := Group{Settings: []Setting{
			{"lr", g.LR}, {"initial_lr", g.InitialLR}, {"betas", []float64{c.Beta1, c.Beta2}}, {"eps", c.Eps},
			{"weight_decay", g.WeightDecay}, {"amsgrad", c.AMSGrad}, {"maximize", c.Maximize}, {"foreach", nil}, {"capturable", false},
			{"differentiable", false}, {"fused", nil}, {"decoupled_weight_decay", true},
		}}
		for _, p := range g.Params {
			name, ok := names[p]
			if !ok {
				return nil, fmt.Errorf("checkpoint: a parameter of the optimiser has no name")
			}
			group.Params = append(group.Params, name)
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// wrappers are what other programs put into names: FSDP1, activation checkpointing, torch.compile, DDP.
var wrappers = strings.NewReplacer("_checkpoint_wrapped_module.", "", "_fsdp_wrapped_module.", "", "_orig_mod.", "")

// canonical gives the name that a parameter has here: without wrappers, and as PEFT writes it to files.
func canonical(name string) string {
	name = wrappers.Replace(name)
	name = strings.TrimPrefix(name, "module.")
	if rest, ok := strings.CutPrefix(name, "base_model.model."); ok {
		name = strings.ReplaceAll(rest, ".base_layer.", ".")
		for _, part := range []string{".lora_A.", ".lora_B."} {
			name = strings.Replace(name, part+"default.", part, 1)
		}
	}
	return name
}

// dcpName is the name and the keys under which PyTorch knows an entry; rename gives a parameter's name there.
func dcpName(kind Kind, entry string, rename func(string) string) (name string, path []any) {
	if rename == nil {
		rename = func(s string) string { return s }
	}
	keys := []string{"model", rename(entry)}
	if kind == Optimizer {
		param, state, _ := cutLast(entry)
		keys = []string{"optimizer", "state", rename(param), state}
	}
	for _, k := range keys {
		path = append(path, k)
	}
	return strings.Join(keys, "."), path
}

// cutLast splits <parameter>.<state>.
func cutLast(name string) (before, after string, ok bool) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return name, "", false
	}
	return name[:i], name[i+1:], true
}

// entryName is the reverse of dcpName for any program's folder; "" means that it is none of the kind's tensors.
func entryName(kind Kind, item dcp.Item) (string, error) {
	var keys []string
	for _, k := range item.Path {
		keys = append(keys, fmt.Sprint(k))
	}
	if kind == Model {
		if len(keys) > 1 && keys[0] == "model" {
			keys = keys[1:]
		}
		return canonical(strings.Join(keys, ".")), nil
	}
	if keys[0] == "optimizer" {
		keys = keys[1:]
	}
	switch {
	case len(keys) == 3 && keys[0] == "state":
		return canonical(keys[1]) + "." + keys[2], nil
	case len(keys) > 0 && keys[0] == "param_groups":
		return "", nil
	}
	return "", fmt.Errorf("%q is no optimiser state of a named parameter", item.Name)
}
