// Package models has models for images: a multilayer perceptron for MNIST, and residual networks.
package models

import (
	"github.com/wangkuiyi/gotorch"
	"github.com/wangkuiyi/gotorch/nn"
)

const mnistPixels = 28 * 28

// MLPModule is a perceptron with two hidden layers.
type MLPModule struct {
	nn.Module
	FC1, FC2, FC3 *nn.LinearModule
}

// MLP makes an MLPModule for MNIST: 28 × 28 pixels, 10 classes.
func MLP() *MLPModule {
	const hidden, classes = 512, 10
	m := &MLPModule{
		FC1: nn.Linear(mnistPixels, hidden, true),
		FC2: nn.Linear(hidden, hidden, true),
		FC3: nn.Linear(hidden, classes, true),
	}
	m.Init(m)
	return m
}

// Forward gives log-probabilities (batch, 10) of images (batch, …) with 784 pixels.
func (m *MLPModule) Forward(x gotorch.Tensor) gotorch.Tensor {
	x = m.FC1.Forward(x.View(-1, mnistPixels)).Tanh()
	x = m.FC2.Forward(x).Tanh()
	return m.FC3.Forward(x).LogSoftmax(1)
}
