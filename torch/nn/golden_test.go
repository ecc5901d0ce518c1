package nn

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gofsdp/gofsdp/torch"
	"github.com/gofsdp/gofsdp/torch/nn/functional"
	"github.com/gofsdp/gofsdp/torch/nn/initializer"
)

type values struct {
	Shape []int64
	Data  []float64
}

func (v values) tensor(s *torch.Scope) *torch.Tensor {
	return s.Own(torch.FromSlice(v.Data, append([]int64{}, v.Shape...)...))
}

func readGolden(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "testdata", "torch", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, v))
}

type layerCase struct {
	State, Grads, After map[string]values
	X, Y, Eval          values
	XGrad               values `json:"x_grad"`
}

type lossCase struct {
	X, Target, Y values
	XGrad        values `json:"x_grad"`
}

type nnGoldens struct {
	Layers map[string]layerCase
	Losses map[string]lossCase
}

func requireValues(t *testing.T, want values, got *torch.Tensor, tolerance float64, what string) {
	t.Helper()
	require.NotNil(t, got, what)
	require.Equal(t, len(want.Shape), got.Dim(), what)
	for i, d := range want.Shape {
		require.Equal(t, d, got.Size(i), what)
	}
	for i, v := range torch.Slice[float64](got.To(torch.Float64)) {
		require.InDelta(t, want.Data[i], v, tolerance*math.Max(1, math.Abs(want.Data[i])), "%s: element %d", what, i)
	}
}

func goldenLayers() map[string]TensorLayer {
	const dt = torch.Float64
	conv := func(stride, padding, dilation []int64, groups int64) ConvConfig {
		return ConvConfig{ConvOptions: functional.ConvOptions{Stride: stride, Padding: padding, Dilation: dilation, Groups: groups}}
	}
	n := func(v ...int64) []int64 { return v }
	transpose := conv(n(2), n(1), nil, 2)
	transpose.OutputPadding = n(1)
	pool := func(f func(x *torch.Tensor) *torch.Tensor) TensorLayer { return NewFunc(f) }
	return map[string]TensorLayer{
		"conv1d":           NewConv1d(4, 6, n(3), conv(n(2), n(1), nil, 2), dt, torch.CPU),
		"conv2d":           NewConv2d(3, 4, n(3, 2), conv(n(2, 1), n(1), n(1, 2), 0), dt, torch.CPU),
		"conv2d_nobias":    NewConv2d(2, 3, n(3), ConvConfig{NoBias: true}, dt, torch.CPU),
		"conv3d":           NewConv3d(2, 2, n(2), conv(nil, n(1), nil, 0), dt, torch.CPU),
		"conv_transpose2d": NewConvTranspose2d(4, 2, n(3), transpose, dt, torch.CPU),
		"batch_norm1d":     NewBatchNorm1d(3, BatchNormConfig{}, dt, torch.CPU),
		"batch_norm2d":     NewBatchNorm2d(3, BatchNormConfig{Momentum: 0.3, Eps: 1e-3}, dt, torch.CPU),
		"batch_norm3d":     NewBatchNorm3d(2, BatchNormConfig{Cumulative: true}, dt, torch.CPU),
		"batch_norm_plain": NewBatchNorm2d(3, BatchNormConfig{NoAffine: true, NoRunning: true}, dt, torch.CPU),
		"layer_norm":       NewLayerNorm(n(3, 2), 1e-5, dt, torch.CPU),
		"group_norm":       NewGroupNorm(2, 4, 1e-5, dt, torch.CPU),
		"sequential": NewSequential(NewLinear(5, 4, true, dt, torch.CPU), Tanh(), NewLinear(4, 2, true, dt, torch.CPU),
			LogSoftmax(1)),
		"relu": ReLU(), "leaky_relu": LeakyReLU(0.2), "gelu": GELU("none"), "gelu_tanh": GELU("tanh"), "silu": SiLU(),
		"sigmoid": Sigmoid(), "tanh": Tanh(), "softmax": Softmax(1), "log_softmax": LogSoftmax(1), "flatten": Flatten(),
		"elu":      pool(func(x *torch.Tensor) *torch.Tensor { return functional.ELU(x, 0.7) }),
		"softplus": pool(functional.Softplus),
		"max_pool1d": pool(func(x *torch.Tensor) *torch.Tensor {
			return functional.MaxPool1d(x, n(2), functional.PoolOptions{Stride: n(1), Padding: n(1)})
		}),
		"avg_pool1d": pool(func(x *torch.Tensor) *torch.Tensor {
			return functional.AvgPool1d(x, n(2), functional.PoolOptions{Stride: n(1), Padding: n(1), ExcludePadding: true})
		}),
		"max_pool2d":          MaxPool2d(n(2, 3), functional.PoolOptions{Stride: n(2), Padding: n(1), CeilMode: true}),
		"avg_pool2d":          AvgPool2d(n(2), functional.PoolOptions{DivisorOverride: 3}),
		"adaptive_avg_pool2d": AdaptiveAvgPool2d(2, 3),
	}
}

func TestLayersGolden(t *testing.T) {
	var goldens nnGoldens
	readGolden(t, "nn.json", &goldens)
	layers := goldenLayers()
	require.Equal(t, slices.Sorted(maps.Keys(goldens.Layers)), slices.Sorted(maps.Keys(layers)))
	for _, name := range slices.Sorted(maps.Keys(layers)) {
		t.Run(name, func(t *testing.T) {
			s := torch.NewScope(nil)
			defer s.Close()
			layer, want := layers[name], goldens.Layers[name]
			var state []NamedTensor
			for _, key := range slices.Sorted(maps.Keys(want.State)) {
				state = append(state, NamedTensor{key, want.State[key].tensor(s)})
			}
			missing, unexpected, err := LoadStateDict(layer, state)
			require.NoError(t, err)
			require.Empty(t, missing)
			require.Empty(t, unexpected)

			x := want.X.tensor(s).SetRequiresGrad(true)
			y := Run(layer, &Call{Scope: s, Training: true}, x)
			requireValues(t, want.Y, y, 1e-12, "output")
			n := y.Numel()
			projection := s.Own(torch.Arange(torch.Float64, 1, n+1)).MulScalar(0.7).Sin().Cos().View(y.Shape()...)
			y.Mul(projection).Sum().Backward()
			requireValues(t, want.XGrad, x.Grad(), 1e-12, "gradient of the input")
			grads := 0
			for _, p := range NamedParams(layer) {
				if p.Param.Trainable() {
					grads++
					requireValues(t, want.Grads[p.Name], p.Param.Tensor().Grad(), 1e-12, "gradient of "+p.Name)
				}
			}
			require.Len(t, want.Grads, grads)
			for _, p := range StateDict(layer) {
				requireValues(t, want.After[p.Name], p.Tensor, 1e-12, p.Name+" afterwards")
			}
			if want.Eval.Data != nil {
				requireValues(t, want.Eval, Run(layer, &Call{Scope: s}, x), 1e-12, "output of evaluation")
			}
		})
	}
}

func TestLossesGolden(t *testing.T) {
	var goldens nnGoldens
	readGolden(t, "nn.json", &goldens)
	one := int64(1)
	type call struct {
		s         *torch.Scope
		x, target *torch.Tensor
		r         torch.Reduction
	}
	weight := func(c call) *torch.Tensor { return c.s.Own(torch.FromSlice([]float64{0.5, 2, 1.25})) }
	classes := func(c call) *torch.Tensor { return c.target.To(torch.Int64) }
	losses := map[string]func(c call) *torch.Tensor{
		"cross_entropy": func(c call) *torch.Tensor {
			return functional.CrossEntropy(c.x, classes(c), c.r, functional.ClassOptions{Weight: weight(c), LabelSmoothing: 0.1})
		},
		"cross_entropy_ignore": func(c call) *torch.Tensor {
			return functional.CrossEntropy(c.x, classes(c), c.r, functional.ClassOptions{IgnoreIndex: &one})
		},
		"nll": func(c call) *torch.Tensor {
			return functional.NLLLoss(c.x, classes(c), c.r, functional.ClassOptions{Weight: weight(c)})
		},
		"mse":       func(c call) *torch.Tensor { return functional.MSELoss(c.x, c.target, c.r) },
		"l1":        func(c call) *torch.Tensor { return functional.L1Loss(c.x, c.target, c.r) },
		"smooth_l1": func(c call) *torch.Tensor { return functional.SmoothL1Loss(c.x, c.target, c.r, 0.5) },
		"huber":     func(c call) *torch.Tensor { return functional.HuberLoss(c.x, c.target, c.r, 0.5) },
		"bce":       func(c call) *torch.Tensor { return functional.BinaryCrossEntropy(c.x, c.target, nil, c.r) },
		"bce_logits": func(c call) *torch.Tensor {
			return functional.BinaryCrossEntropyWithLogits(c.x, c.target, nil, weight(c), c.r)
		},
		"kl_div":     func(c call) *torch.Tensor { return functional.KLDivLoss(c.x, c.target, c.r, false) },
		"kl_div_log": func(c call) *torch.Tensor { return functional.KLDivLoss(c.x, c.target, c.r, true) },
	}
	reductions := map[string]torch.Reduction{"none": torch.ReduceNone, "mean": torch.ReduceMean, "sum": torch.ReduceSum}
	require.Len(t, goldens.Losses, 3*len(losses))
	for _, key := range slices.Sorted(maps.Keys(goldens.Losses)) {
		t.Run(key, func(t *testing.T) {
			s := torch.NewScope(nil)
			defer s.Close()
			want := goldens.Losses[key]
			name, reduction, _ := strings.Cut(key, "/")
			x := want.X.tensor(s).SetRequiresGrad(true)
			y := losses[name](call{s, x, want.Target.tensor(s), reductions[reduction]})
			requireValues(t, want.Y, y, 1e-12, "loss")
			y.Sum().Backward()
			requireValues(t, want.XGrad, x.Grad(), 1e-12, "gradient")
		})
	}
}

func TestInitializersGolden(t *testing.T) {
	var goldens map[string]map[string]values
	readGolden(t, "init.json", &goldens)
	g := torch.NewGenerator(0)
	draws := map[string]func(t *torch.Tensor){
		"uniform":           func(t *torch.Tensor) { initializer.Uniform(t, -2, 3, g) },
		"normal":            func(t *torch.Tensor) { initializer.Normal(t, 1, 2, g) },
		"trunc_normal":      func(t *torch.Tensor) { initializer.TruncNormal(t, 0.5, 2, -1, 1.5, g) },
		"trunc_normal_tail": func(t *torch.Tensor) { initializer.TruncNormal(t, 0, 1, 2, 3, g) },
		"kaiming_uniform": func(t *torch.Tensor) {
			initializer.KaimingUniform(t, initializer.KaimingOptions{}, g)
		},
		"kaiming_uniform_leaky_out": func(t *torch.Tensor) {
			initializer.KaimingUniform(t, initializer.KaimingOptions{Mode: initializer.FanOut, Nonlinearity: "leaky_relu", Param: 0.3}, g)
		},
		"kaiming_normal": func(t *torch.Tensor) {
			initializer.KaimingNormal(t, initializer.KaimingOptions{Nonlinearity: "tanh"}, g)
		},
		"xavier_uniform": func(t *torch.Tensor) { initializer.XavierUniform(t, 0.8, g) },
		"xavier_normal":  func(t *torch.Tensor) { initializer.XavierNormal(t, 1, g) },
	}
	require.Len(t, goldens, len(draws)+1)
	for name, draw := range draws {
		g.Seed(7)
		x := torch.Empty(torch.Float32, 4, 3, 2)
		draw(x)
		requireValues(t, goldens[name]["t"], x, 0, name)
	}

	model := &struct {
		Hooks
		Layers []any `torch:""`
	}{Layers: []any{
		NewConv2d(2, 3, []int64{3}, ConvConfig{}, torch.Float32, torch.CPU), NewBatchNorm2d(3, BatchNormConfig{}, torch.Float32, torch.CPU),
		NewConvTranspose2d(3, 2, []int64{2}, ConvConfig{}, torch.Float32, torch.CPU), NewLinear(4, 3, true, torch.Float32, torch.CPU),
		NewEmbedding(5, 2, torch.Float32, torch.CPU), NewLayerNorm([]int64{3}, 1e-5, torch.Float32, torch.CPU),
		NewGroupNorm(1, 2, 1e-5, torch.Float32, torch.CPU)}}
	g.Seed(7)
	ResetParameters(model, g)
	require.Len(t, StateDict(model), len(goldens["model"]))
	for _, p := range StateDict(model) {
		requireValues(t, goldens["model"][p.Name], p.Tensor, 0, p.Name)
	}
}

func TestInitializerFaults(t *testing.T) {
	require.ErrorIs(t, torch.Try(func() { initializer.FanInAndFanOut(torch.Ones(torch.Float32, 3)) }), torch.ErrArgument)
	require.ErrorContains(t, torch.Try(func() { initializer.Gain("nonsense", 0) }), `"nonsense"`)
}

func TestLoadStateDict(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	model := NewSequential(NewLinear(2, 2, true, torch.Float32, torch.CPU), NewBatchNorm1d(2, BatchNormConfig{}, torch.Float32, torch.CPU))
	ResetParameters(model, torch.NewGenerator(1))
	require.Len(t, NamedBuffers(model), 3)
	var names []string
	for _, n := range StateDict(model) {
		require.False(t, n.Tensor.RequiresGrad())
		names = append(names, n.Name)
	}
	require.Equal(t, []string{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}, names)

	ones := s.Own(torch.Ones(torch.BFloat16, 2, 2)) // converted
	missing, unexpected, err := LoadStateDict(model, []NamedTensor{{"0.weight", ones}, {"2.weight", ones}})
	require.NoError(t, err)
	require.Equal(t, names[1:], missing)
	require.Equal(t, []string{"2.weight"}, unexpected)
	weight := model.Layers[0].(*Linear).Weight
	require.Equal(t, []float32{1, 1, 1, 1}, torch.Slice[float32](weight.Tensor()))
	require.True(t, weight.Tensor().RequiresGrad())

	wrong := s.Own(torch.Zeros(torch.Float32, 3))
	_, _, err = LoadStateDict(model, []NamedTensor{{"0.weight", s.Own(torch.Zeros(torch.Float32, 2, 2))}, {"0.bias", wrong}})
	require.EqualError(t, err, `nn: load state: "0.bias" has shape [3], the module's has [2]`)
	require.Equal(t, []float32{1, 1, 1, 1}, torch.Slice[float32](weight.Tensor()), "an error changes nothing")
	_, _, err = LoadStateDict(model, []NamedTensor{{"0.weight", ones}, {"0.weight", ones}})
	require.ErrorContains(t, err, "given twice")

	weight.shape, weight.lo, weight.hi = []int64{4, 2}, 1, 3 // as if it were sharded
	whole := s.Own(torch.FromSlice([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2))
	_, _, err = LoadStateDict(model, []NamedTensor{{"0.weight", whole}})
	require.NoError(t, err)
	require.Equal(t, []float32{3, 4, 5, 6}, torch.Slice[float32](weight.Tensor()))
}

func TestBuffersStayFrozen(t *testing.T) {
	b := NewBuffer(torch.Zeros(torch.Float32, 2))
	b.SetTrainable(true)
	require.False(t, b.Trainable() || b.Tensor().RequiresGrad())
	require.True(t, b.Buffer() && b.Replicated())
}

func TestLayerFaults(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	c := &Call{Scope: s, Training: true}
	for name, f := range map[string]func(){
		"kernel of 3 sizes": func() { NewConv2d(1, 1, []int64{1, 2, 3}, ConvConfig{}, torch.Float32, torch.CPU) },
		"cannot have 2 groups": func() {
			NewConv1d(3, 2, []int64{1}, ConvConfig{ConvOptions: functional.ConvOptions{Groups: 2}}, torch.Float32, torch.CPU)
		},
		"BatchNorm2d got an input of shape [2 3]": func() {
			Run(NewBatchNorm2d(3, BatchNormConfig{}, torch.Float32, torch.CPU), c, s.Own(torch.Ones(torch.Float32, 2, 3)))
		},
		"conv2d": func() {
			Run(NewConv2d(1, 1, []int64{3}, ConvConfig{}, torch.Float32, torch.CPU), c, s.Own(torch.Ones(torch.Float32, 1, 2, 4, 4)))
		},
	} {
		require.ErrorContains(t, torch.Try(f), name, fmt.Sprint(name))
	}
}

// The transpose of a convolution is its gradient by the input.
func TestParityConvTransposeIsTheGradientOfConv(t *testing.T) {
	s := torch.NewScope(nil)
	defer s.Close()
	g := torch.NewGenerator(1)
	o := ConvConfig{NoBias: true}
	o.Stride = []int64{2}
	for dims, l := range []TensorLayer{
		NewConvTranspose1d(2, 3, []int64{3}, o, torch.Float64, torch.CPU),
		NewConvTranspose2d(2, 3, []int64{3}, o, torch.Float64, torch.CPU),
		NewConvTranspose3d(2, 3, []int64{3}, o, torch.Float64, torch.CPU),
	} {
		ResetParameters(l, g)
		size := []int64{1, 2, 4, 4, 4}[:3+dims]
		big := []int64{1, 3, 9, 9, 9}[:3+dims]
		x := s.Own(torch.Randn(g, torch.Float64, size...))
		in := s.Own(torch.Zeros(torch.Float64, big...)).SetRequiresGrad(true)
		conv := []string{"aten::conv1d", "aten::conv2d", "aten::conv3d"}[dims]
		stride := slices.Repeat([]int64{2}, dims+1)
		y := torch.CallOne(conv, in, Params(l)[0].In(s), nil, stride)
		want := torch.Grad([]*torch.Tensor{y}, []*torch.Tensor{in}, torch.GradOptions{GradOutputs: []*torch.Tensor{x}})[0]
		got := Run(l, &Call{Scope: s}, x)
		require.True(t, got.AllClose(want, 1e-12, 1e-12), conv)
	}
}

// Gradients of gradients through checkpointed layers: the same through the non-reentrant kind, an error through the other.
func TestDoubleBackwardThroughCheckpoints(t *testing.T) {
	l := &squareLayer{W: NewParam(torch.Randn(torch.NewGenerator(3), torch.Float64, 3, 3), true)}
	penalty := func(c *Call) *torch.Tensor {
		x := input3(c.Scope).MulScalar(0.1).SetRequiresGrad(true)
		y := Run(l, c, x).Sum()
		g := torch.Grad([]*torch.Tensor{y}, []*torch.Tensor{x}, torch.GradOptions{CreateGraph: true})[0]
		return g.Pow(2).Sum()
	}
	want := gradsOf(t, l, penalty, 1)
	l.SetCheckpoint(true)
	require.Equal(t, want, gradsOf(t, l, penalty, 1))
	l.SetCheckpointReentrant(true)
	s := torch.NewScope(nil)
	defer s.Close()
	err := torch.Try(func() { penalty(&Call{Scope: s, Training: true}).Backward() })
	require.ErrorContains(t, err, "can be differentiated once")
}
