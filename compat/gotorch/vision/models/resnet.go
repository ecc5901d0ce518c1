package models

import (
	"fmt"
	"reflect"

	"github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn"
	F "github.com/wangkuiyi/gotorch/nn/functional"
)

func conv(in, out, kernel, stride, padding, dilation, groups int64) *nn.Conv2dModule {
	return nn.Conv2d(in, out, kernel, stride, padding, dilation, groups, false, "zeros")
}

func norm(channels int64) *nn.BatchNorm2dModule {
	return nn.BatchNorm2d(channels, 1e-5, 0.1, true, true)
}

// add gives relu(out + x), where x goes through downsample if there is one.
func add(out, x gotorch.Tensor, downsample *nn.SequentialModule) gotorch.Tensor {
	if downsample != nil {
		x = downsample.Forward(x).(gotorch.Tensor)
	}
	return F.Relu(out.AddI(x, 1), true)
}

// BasicBlockModule is two convolutions beside a shortcut (He et al. 2015).
type BasicBlockModule struct {
	nn.Module
	C1, C2     *nn.Conv2dModule
	BN1, BN2   *nn.BatchNorm2dModule
	Downsample *nn.SequentialModule
}

// BasicBlock makes a BasicBlockModule. downsample, which may be nil, is on the shortcut. Groups, base width and dilation
// are for Bottleneck; this block has no use for them.
func BasicBlock(inplanes, planes, stride int64, downsample *nn.SequentialModule,
	groups, baseWidth, dilation int64) *BasicBlockModule {
	b := &BasicBlockModule{
		C1:         conv(inplanes, planes, 3, stride, 1, 1, 1),
		BN1:        norm(planes),
		C2:         conv(planes, planes, 3, 1, 1, 1, 1),
		BN2:        norm(planes),
		Downsample: downsample,
	}
	b.Init(b)
	return b
}

// Forward computes the block for x (batch, channels, height, width).
func (b *BasicBlockModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	out := F.Relu(b.BN1.Forward(b.C1.Forward(x)), true)
	out = b.BN2.Forward(b.C2.Forward(out))
	return add(out, x, b.Downsample)
}

// BottleneckModule is three convolutions beside a shortcut; the one in the middle has fewer channels.
type BottleneckModule struct {
	nn.Module
	C1, C2, C3    *nn.Conv2dModule
	BN1, BN2, BN3 *nn.BatchNorm2dModule
	Downsample    *nn.SequentialModule
}

// expansion is how many times wider than planes a bottleneck's output is.
const expansion = 4

// Bottleneck makes a BottleneckModule. downsample, which may be nil, is on the shortcut.
func Bottleneck(inplanes, planes, stride int64, downsample *nn.SequentialModule,
	groups, baseWidth, dilation int64) *BottleneckModule {
	width := planes * baseWidth / 64 * groups
	b := &BottleneckModule{
		C1:         conv(inplanes, width, 1, 1, 0, 1, 1),
		C2:         conv(width, width, 3, stride, dilation, dilation, groups),
		C3:         conv(width, planes*expansion, 1, 1, 0, 1, 1),
		BN1:        norm(width),
		BN2:        norm(width),
		BN3:        norm(planes * expansion),
		Downsample: downsample,
	}
	b.Init(b)
	return b
}

// Forward computes the block for x (batch, channels, height, width).
func (b *BottleneckModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	out := F.Relu(b.BN1.Forward(b.C1.Forward(x)), true)
	out = F.Relu(b.BN2.Forward(b.C2.Forward(out)), true)
	out = b.BN3.Forward(b.C3.Forward(out))
	return add(out, x, b.Downsample)
}

// ResnetModule is a residual network for images.
type ResnetModule struct {
	nn.Module
	C1                                    *nn.Conv2dModule
	BN1                                   *nn.BatchNorm2dModule
	L1, L2, L3, L4                        *nn.SequentialModule
	FC                                    *nn.LinearModule
	Block                                 reflect.Type
	Inplanes, Groups, BaseWidth, Dilation int64
}

// Resnet makes a ResnetModule of four stages with layers[i] blocks each. block is the type BasicBlockModule or
// BottleneckModule. zeroInitResidual has no effect, as in the original.
func Resnet(block reflect.Type, layers []int64, numClasses int64, zeroInitResidual bool, groups, widthPerGroup int64) *ResnetModule {
	const inplanes = 64
	r := &ResnetModule{Block: block, Inplanes: inplanes, Groups: groups, BaseWidth: widthPerGroup, Dilation: 1}
	r.C1 = conv(3, inplanes, 7, 2, 3, 1, 1)
	r.BN1 = norm(inplanes)
	r.FC = nn.Linear(512*r.expansion(), numClasses, true)
	r.L1 = r.stage(64, layers[0], 1)
	r.L2 = r.stage(128, layers[1], 2)
	r.L3 = r.stage(256, layers[2], 2)
	r.L4 = r.stage(512, layers[3], 2)
	r.Init(r)
	return r
}

func (r *ResnetModule) expansion() int64 {
	switch r.Block {
	case reflect.TypeFor[BasicBlockModule]():
		return 1
	case reflect.TypeFor[BottleneckModule]():
		return expansion
	}
	panic(fmt.Sprintf("models: a Resnet is made of BasicBlockModule or BottleneckModule, not of %v", r.Block))
}

func (r *ResnetModule) block(planes, stride int64, downsample *nn.SequentialModule) nn.IModule {
	if r.expansion() == 1 {
		return BasicBlock(r.Inplanes, planes, stride, downsample, r.Groups, r.BaseWidth, r.Dilation)
	}
	return Bottleneck(r.Inplanes, planes, stride, downsample, r.Groups, r.BaseWidth, r.Dilation)
}

// stage makes blocks of which the first has the given stride.
func (r *ResnetModule) stage(planes, blocks, stride int64) *nn.SequentialModule {
	out := planes * r.expansion()
	var downsample *nn.SequentialModule
	if stride != 1 || r.Inplanes != out {
		downsample = nn.Sequential(conv(r.Inplanes, out, 1, stride, 0, 1, 1), norm(out))
	}
	list := []nn.IModule{r.block(planes, stride, downsample)}
	r.Inplanes = out
	for range blocks - 1 {
		list = append(list, r.block(planes, 1, nil))
	}
	return nn.Sequential(list...)
}

// Forward gives logits (batch, classes) of images (batch, 3, height, width).
func (r *ResnetModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	x = F.Relu(r.BN1.Forward(r.C1.Forward(x)), true)
	x = F.MaxPool2d(x, []int64{3, 3}, []int64{2, 2}, []int64{1, 1}, []int64{1, 1}, false)
	for _, stage := range []*nn.SequentialModule{r.L1, r.L2, r.L3, r.L4} {
		x = stage.Forward(x).(gotorch.Tensor)
	}
	x = F.AdaptiveAvgPool2d(x, []int64{1, 1})
	return r.FC.Forward(gotorch.Flatten(x, 1, -1))
}

// Resnet18 makes the network with 18 layers, for the 1000 classes of ImageNet.
func Resnet18() *ResnetModule {
	return Resnet(reflect.TypeFor[BasicBlockModule](), []int64{2, 2, 2, 2}, 1000, false, 1, 64)
}

// Resnet50 makes the network with 50 layers, for the 1000 classes of ImageNet.
func Resnet50() *ResnetModule {
	return Resnet(reflect.TypeFor[BottleneckModule](), []int64{3, 4, 6, 3}, 1000, false, 1, 64)
}
