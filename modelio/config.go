package modelio

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/internal/atomicfile"
)

// ConfigName is the name of a model folder's configuration file.
const ConfigName = "config.json"

// SupportedArchitectures lists the values of "architectures" that ReadConfig accepts.
var SupportedArchitectures = []string{"LlamaForCausalLM"}

// Rope describes rotary position embeddings.
type Rope struct {
	Type  string  // "default", "llama3", "linear", "dynamic", "yarn", ...
	Theta float64 // base of the frequencies

	// Scaling; zero where the type has no use for it.
	Factor                        float64
	LowFreqFactor                 float64
	HighFreqFactor                float64
	OriginalMaxPositionEmbeddings int

	// Extra holds the keys that have no field above.
	Extra map[string]json.RawMessage
}

// Config is a config.json of the Llama family. ReadConfig understands the spelling of transformers 5
// (rope_parameters, dtype) and the classic one (rope_theta with rope_scaling, torch_dtype), and fills in the defaults
// that transformers has for absent keys.
type Config struct {
	Architecture string // "LlamaForCausalLM"
	ModelType    string // "llama"

	VocabSize             int
	HiddenSize            int
	IntermediateSize      int
	NumHiddenLayers       int
	NumAttentionHeads     int
	NumKeyValueHeads      int
	HeadDim               int
	MaxPositionEmbeddings int

	RMSNormEps        float64
	HiddenAct         string // "silu"
	AttentionBias     bool
	MLPBias           bool
	TieWordEmbeddings bool
	Rope              Rope

	BOSTokenID  *int  // nil: none
	EOSTokenIDs []int // the file has a number, a list or null
	PadTokenID  *int  // nil: none

	DType string // dtype of the stored weights, PyTorch's name ("bfloat16"); empty if the file does not say

	// Extra holds the keys that have no field above. They are written back as they were.
	Extra map[string]json.RawMessage

	// Which spellings the file used; with neither, both are written.
	v5, classic bool
}

// ReadConfig reads dir/config.json. An architecture that is not supported is an error that lists those that are.
func ReadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, ConfigName)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("modelio: %s is no model folder: it has no %s: %w", dir, ConfigName, err)
	}
	if err != nil {
		return nil, fmt.Errorf("modelio: read config: %w", err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("modelio: %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads the text of a config.json.
func ParseConfig(data []byte) (*Config, error) {
	c := &Config{}
	if err := json.Unmarshal(data, c); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line, column := position(data, syntax.Offset)
			return nil, fmt.Errorf("line %d column %d: %w", line, column, err)
		}
		return nil, err
	}
	return c, c.Validate()
}

// position turns a byte offset into a line and a column, both from 1.
func position(data []byte, offset int64) (line, column int) {
	head := string(data[:max(0, min(offset-1, int64(len(data))))])
	return 1 + strings.Count(head, "\n"), len(head) - strings.LastIndex(head, "\n")
}

// Validate checks that the numbers make a model.
func (c *Config) Validate() error {
	if !slices.Contains(SupportedArchitectures, c.Architecture) {
		return fmt.Errorf("architecture %q is not supported (supported: %s)", c.Architecture, strings.Join(SupportedArchitectures, ", "))
	}
	for _, n := range c.counts() {
		if *n.value <= 0 {
			return fmt.Errorf("%s is %d or missing, expected a positive number", n.key, *n.value)
		}
	}
	if c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		return fmt.Errorf("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	}
	if c.HeadDim%2 != 0 {
		return fmt.Errorf("head_dim %d is odd: rotary embeddings need pairs", c.HeadDim)
	}
	if !(c.RMSNormEps > 0) {
		return fmt.Errorf("rms_norm_eps is %v, expected a positive number", c.RMSNormEps)
	}
	return c.Rope.validate()
}

func (r *Rope) validate() error {
	if !(r.Theta > 0) {
		return fmt.Errorf("rope_theta is %v, expected a positive number", r.Theta)
	}
	switch r.Type {
	case "linear", "dynamic", "yarn":
		if !(r.Factor > 0) {
			return fmt.Errorf("rope type %q needs a positive factor, has %v", r.Type, r.Factor)
		}
	case "llama3":
		if !(r.Factor > 0 && r.LowFreqFactor > 0 && r.HighFreqFactor > r.LowFreqFactor) || r.OriginalMaxPositionEmbeddings <= 0 {
			return fmt.Errorf("rope type \"llama3\" needs factor, low_freq_factor < high_freq_factor and "+
				"original_max_position_embeddings, has %v, %v, %v and %d",
				r.Factor, r.LowFreqFactor, r.HighFreqFactor, r.OriginalMaxPositionEmbeddings)
		}
	}
	return nil
}

// WriteConfig writes dir/config.json in one step, keys sorted as transformers does. The spelling of a configuration
// that was read is kept; a new one gets both spellings, so that old and new readers understand it.
func WriteConfig(dir string, c *Config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("modelio: write config: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, ConfigName), append(data, '\n')); err != nil {
		return fmt.Errorf("modelio: write config: %w", err)
	}
	return nil
}
