package peft

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// The files of an adapter's folder.
const (
	ConfigName  = "adapter_config.json"
	WeightsName = "adapter_model.safetensors"
)

// ErrUnsupported marks a setting of PEFT that this package does not have.
var ErrUnsupported = errors.New("not supported")

// Config is a LoRA configuration. The fields mean what they mean in PEFT's LoraConfig.
type Config struct {
	R           int     // rank; 0 stands for 8
	LoRAAlpha   float64 // the update is scaled by LoRAAlpha/R; 0 stands for 8
	LoRADropout float64 // probability that an input of an adapter is dropped in training
	// TargetModules names the linear layers that get an adapter.
	TargetModules Modules
	// ExcludeModules names layers that get none all the same.
	ExcludeModules Modules
	// LayersToTransform limits the adapters to decoder layers with these indices; nil means all.
	LayersToTransform []int
	// LayersPattern are the names of the lists that these indices count in; nil means any.
	LayersPattern []string
	UseRSLoRA     bool     // scale by LoRAAlpha/√R
	RankPattern   Patterns // ranks of single layers
	AlphaPattern  Patterns // alphas of single layers
	// InitLoRAWeights is "" or "true" (A uniform, B zero) or "gaussian" (A normal with deviation 1/R, B zero).
	InitLoRAWeights string
	// BaseModel is written to the file as the name or path of the base model.
	BaseModel string
	// Extra holds the file's other keys. They are written back as they were.
	Extra map[string]json.RawMessage
}

// extraKeys are the keys without a field that PEFT 0.21 writes.
const extraKeys = `{"alora_invocation_tokens": null, "arrow_config": null, "auto_mapping": null, "corda_config": null,
"ensure_weight_tying": false, "eva_config": null, "fan_in_fan_out": false, "kasa_config": null, "layer_replication": null,
"loftq_config": {}, "lora_bias": false, "lora_ga_config": null, "megatron_config": null,
"megatron_core": "megatron.core", "monteclora_config": null, "peft_version": "0.21.2", "qalora_group_size": 16,
"revision": null, "target_parameters": null, "trainable_token_indices": null, "use_bdlora": null, "use_qalora": false,
"velora_config": null}`

// neutral are the values with which an unsupported key changes nothing.
var neutral = map[string][]string{
	"alora_invocation_tokens": {"null"}, "arrow_config": {"null"}, "bias": {`"none"`}, "ensure_weight_tying": {"false"},
	"fan_in_fan_out": {"false"}, "kasa_config": {"null"}, "layer_replication": {"null", "[]"}, "lora_bias": {"false"},
	"megatron_config": {"null"}, "modules_to_save": {"null", "[]"}, "monteclora_config": {"null"}, "peft_type": {`"LORA"`},
	"target_parameters": {"null", "[]"}, "trainable_token_indices": {"null"}, "use_bdlora": {"null", "false"},
	"use_dora": {"false"}, "use_qalora": {"false"}, "velora_config": {"null"},
}

// UnmarshalJSON reads the text of an adapter_config.json. Settings that this package does not have are an error that
// names the key.
func (c *Config) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(neutral)) {
		if value, ok := raw[key]; ok && !slices.Contains(neutral[key], string(bytes.TrimSpace(value))) {
			return fmt.Errorf("%s %s is %w (without effect: %s)", key, value, ErrUnsupported, neutral[key][0])
		}
	}
	*c = Config{R: 8, LoRAAlpha: 8}
	var init, layers, pattern, base any
	for _, f := range []struct {
		key string
		to  any
	}{
		{"r", &c.R}, {"lora_alpha", &c.LoRAAlpha}, {"lora_dropout", &c.LoRADropout}, {"target_modules", &c.TargetModules},
		{"exclude_modules", &c.ExcludeModules}, {"layers_to_transform", &layers}, {"layers_pattern", &pattern},
		{"use_rslora", &c.UseRSLoRA}, {"rank_pattern", &c.RankPattern}, {"alpha_pattern", &c.AlphaPattern},
		{"init_lora_weights", &init}, {"base_model_name_or_path", &base},
	} {
		if value, ok := raw[f.key]; ok {
			if err := json.Unmarshal(value, f.to); err != nil {
				return fmt.Errorf("%s: %w", f.key, err)
			}
			delete(raw, f.key)
		}
	}
	c.BaseModel, _ = base.(string)
	var err error
	if c.LayersToTransform, err = numbers(layers); err != nil {
		return fmt.Errorf("layers_to_transform: %w", err)
	}
	if c.LayersPattern, err = names(pattern); err != nil {
		return fmt.Errorf("layers_pattern: %w", err)
	}
	switch init {
	case nil, true, "gaussian":
		if init == "gaussian" {
			c.InitLoRAWeights = "gaussian"
		}
	default:
		return fmt.Errorf("init_lora_weights %v is %w (supported: true, gaussian)", init, ErrUnsupported)
	}
	for _, key := range []string{"bias", "modules_to_save", "peft_type", "use_dora", "task_type", "inference_mode"} {
		delete(raw, key)
	}
	c.Extra = raw
	return nil
}

// numbers reads null, a number or a list of numbers.
func numbers(v any) ([]int, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case float64:
		return []int{int(v)}, nil
	case []any:
		var list []int
		for _, e := range v {
			n, ok := e.(float64)
			if !ok {
				return nil, fmt.Errorf("expected numbers, got %v", e)
			}
			list = append(list, int(n))
		}
		return list, nil
	}
	return nil, fmt.Errorf("expected numbers, got %v", v)
}

// names reads null, a string or a list of strings.
func names(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		if v == "" {
			return nil, nil
		}
		return []string{v}, nil
	case []any:
		var list []string
		for _, e := range v {
			n, ok := e.(string)
			if !ok {
				return nil, fmt.Errorf("expected strings, got %v", e)
			}
			list = append(list, n)
		}
		return list, nil
	}
	return nil, fmt.Errorf("expected strings, got %v", v)
}

// MarshalJSON writes the configuration with the keys that PEFT writes.
func (c Config) MarshalJSON() ([]byte, error) {
	c = c.withDefaults()
	out := map[string]any{}
	var extra map[string]json.RawMessage
	if err := json.Unmarshal([]byte(extraKeys), &extra); err != nil {
		return nil, err
	}
	for key, value := range extra {
		out[key] = value
	}
	for key, value := range c.Extra {
		out[key] = value
	}
	out["peft_type"], out["task_type"], out["inference_mode"] = "LORA", "CAUSAL_LM", true
	out["bias"], out["modules_to_save"], out["use_dora"] = "none", nil, false
	out["r"], out["lora_alpha"], out["lora_dropout"] = c.R, c.LoRAAlpha, decimal(c.LoRADropout)
	out["target_modules"], out["exclude_modules"] = c.TargetModules, c.ExcludeModules
	out["layers_to_transform"], out["layers_pattern"] = c.LayersToTransform, nil
	switch len(c.LayersPattern) {
	case 0:
	case 1:
		out["layers_pattern"] = c.LayersPattern[0]
	default:
		out["layers_pattern"] = c.LayersPattern
	}
	out["use_rslora"], out["rank_pattern"], out["alpha_pattern"] = c.UseRSLoRA, c.RankPattern, c.AlphaPattern
	out["init_lora_weights"] = any(true)
	if c.InitLoRAWeights == "gaussian" {
		out["init_lora_weights"] = "gaussian"
	}
	out["base_model_name_or_path"] = nil
	if c.BaseModel != "" {
		out["base_model_name_or_path"] = c.BaseModel
	}
	return json.Marshal(out)
}

// decimal writes a float as Python does, with a point: 0.0.
type decimal float64

// MarshalJSON writes the number.
func (d decimal) MarshalJSON() ([]byte, error) {
	text := strconv.FormatFloat(float64(d), 'f', -1, 64)
	if float64(d) == math.Trunc(float64(d)) {
		text += ".0"
	}
	return []byte(text), nil
}

func (c Config) withDefaults() Config {
	if c.R == 0 {
		c.R = 8
	}
	if c.LoRAAlpha == 0 {
		c.LoRAAlpha = 8
	}
	return c
}

// Validate lists every fault of the configuration.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.R < 0 {
		errs = append(errs, fmt.Errorf("r is %d, expected a positive number", c.R))
	}
	if !(c.LoRADropout >= 0 && c.LoRADropout < 1) {
		errs = append(errs, fmt.Errorf("lora_dropout is %v, expected a probability below 1", c.LoRADropout))
	}
	if c.TargetModules.empty() {
		errs = append(errs, errors.New("target_modules is empty: name layers, or use \"all-linear\""))
	}
	switch c.InitLoRAWeights {
	case "", "true", "gaussian":
	default:
		errs = append(errs, fmt.Errorf("init_lora_weights %q is %w (supported: true, gaussian)", c.InitLoRAWeights, ErrUnsupported))
	}
	for _, p := range c.RankPattern {
		if p.Value < 1 || p.Value != math.Trunc(p.Value) {
			errs = append(errs, fmt.Errorf("rank_pattern: %q has rank %v, expected a positive whole number", p.Key, p.Value))
		}
	}
	return errors.Join(errs...)
}

// ReadConfig reads dir/adapter_config.json.
func ReadConfig(dir string) (Config, error) {
	var c Config
	path := filepath.Join(dir, ConfigName)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("peft: %s is no adapter folder: it has no %s: %w", dir, ConfigName, err)
	}
	if err != nil {
		return c, fmt.Errorf("peft: read configuration: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("peft: %s: %w", path, err)
	}
	if err := c.Validate(); err != nil {
		return c, fmt.Errorf("peft: %s: %w", path, err)
	}
	return c, nil
}

// layer gives rank and scaling of a layer, or false where it gets no adapter.
func (c Config) layer(name string) (rank int, scaling float64, ok bool, err error) {
	if ok, err = c.targets(name); !ok || err != nil {
		return 0, 0, false, err
	}
	r, err := c.RankPattern.lookup(name, float64(c.R))
	if err != nil {
		return 0, 0, false, err
	}
	alpha, err := c.AlphaPattern.lookup(name, c.LoRAAlpha)
	if err != nil {
		return 0, 0, false, err
	}
	if c.UseRSLoRA {
		return int(r), alpha / math.Sqrt(r), true, nil
	}
	return int(r), alpha / r, true, nil
}

func (c Config) targets(name string) (bool, error) {
	if !c.ExcludeModules.empty() {
		if excluded, err := c.ExcludeModules.match(name); excluded || err != nil {
			return false, err
		}
	}
	ok, err := c.TargetModules.match(name)
	if !ok || err != nil || len(c.LayersToTransform) == 0 {
		return ok, err
	}
	patterns := c.LayersPattern
	if len(patterns) == 0 {
		patterns = []string{`[^.]*`}
	}
	for _, p := range patterns {
		index, found, err := layerIndex(p, name)
		if err != nil {
			return false, err
		}
		if found {
			return slices.Contains(c.LayersToTransform, index), nil
		}
	}
	return false, nil
}
