package setup

import (
	"fmt"
	"path"
	"runtime"
	"strings"
)

// wheel is one pinned package. The hashes are those of the files that `pip download` picks for python 3.11: what
// we use of them does not depend on the Python version.
type wheel struct {
	name, version string
	amd64, arm64  string // SHA-256
	sha256        string // that of this machine
	cuda          bool   // needed for CUDA only
}

// The wheels that libtorch 2.13.0 asks for in its metadata. libtorch_cpu.so itself is linked to libcudart and
// libcupti, so those two come along on machines without a GPU.
var pinned = []wheel{
	{name: "torch", version: TorchVersion,
		amd64: "60fcdcb2f3876e21146cb4524ef06397d727ca9ad5f020818547e25075fe3cb7",
		arm64: "092790c696a760c729fd5722835f50b9d81fd7c8f141571f3f3cf4081a8f664c"},
	{name: "nvidia-cuda-runtime", version: "13.0.96",
		amd64: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
		arm64: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55"},
	{name: "nvidia-cuda-cupti", version: "13.0.85",
		amd64: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
		arm64: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151"},

	{name: "nvidia-cublas", version: "13.1.1.3", cuda: true,
		amd64: "37936a16db8fe4ac1f065c2139360608a543a09275cb1a1af612e08cfa065436",
		arm64: "b7a210458267ac818974c53038fbec2e969d5c99f305ab15c72522fa9f001dd5"},
	{name: "nvidia-cuda-nvrtc", version: "13.0.88", cuda: true,
		amd64: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
		arm64: "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b"},
	{name: "nvidia-cufft", version: "12.0.0.61", cuda: true,
		amd64: "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
		arm64: "2708c852ef8cd89d1d2068bdbece0aa188813a0c934db3779b9b1faa8442e5f5"},
	{name: "nvidia-cufile", version: "1.15.1.6", cuda: true,
		amd64: "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
		arm64: "bdc0deedc61f548bddf7733bdc216456c2fdb101d020e1ab4b88d232d5e2f6d1"},
	{name: "nvidia-curand", version: "10.4.0.35", cuda: true,
		amd64: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
		arm64: "133df5a7509c3e292aaa2b477afd0194f06ce4ea24d714d616ff36439cee349a"},
	{name: "nvidia-cusolver", version: "12.0.4.66", cuda: true,
		amd64: "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
		arm64: "02c2457eaa9e39de20f880f4bd8820e6a1cfb9f9a34f820eb12a155aa5bc92d2"},
	{name: "nvidia-cusparse", version: "12.6.3.3", cuda: true,
		amd64: "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
		arm64: "80bcc4662f23f1054ee334a15c72b8940402975e0eab63178fc7e670aa59472c"},
	{name: "nvidia-nvjitlink", version: "13.5.37", cuda: true,
		amd64: "280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb",
		arm64: "893f6f9a55b2720ed94913b5ba3332e972da8c78dfa2863d0244403dbd528ffc"},
	{name: "nvidia-nvtx", version: "13.0.85", cuda: true,
		amd64: "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
		arm64: "cb7780edb6b14107373c835bf8b72e7a178bac7367e23da7acb108f973f157a6"},
	{name: "nvidia-cudnn-cu13", version: "9.20.0.48", cuda: true,
		amd64: "0c45dd8eeb50b603f07995b1b300c62ffe6a1980482b82b3bcf94a4ca9d49304",
		arm64: "e31454ae00094b0c55319d9d15b6fa2fc50a9e1c0f5c8c80fb75258234e731e1"},
	{name: "nvidia-cusparselt-cu13", version: "0.8.1", cuda: true,
		amd64: "786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0",
		arm64: "4dca476c50bf4780d46cd0bfbd82e2bc10a08e4fef7950917ce8d7578d22a23f"},
	{name: "nvidia-nccl-cu13", version: "2.29.7", cuda: true,
		amd64: "edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d",
		arm64: "674a12383e3c38a1bcccae7d4f3633b37852230b6047883cb2f4c2d1b36d9bf5"},
	{name: "nvidia-nvshmem-cu13", version: "3.4.5", cuda: true,
		amd64: "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
		arm64: "6dc2a197f38e5d0376ad52cd1a2a3617d3cdc150fd5966f4aee9bcebb1d68fe9"},
}

// pinnedWheels returns the wheels for this machine.
func pinnedWheels(cuda bool) ([]wheel, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("libtorch is downloaded on Linux only; set GOFSDP_TORCH_DIR to one that is installed")
	}
	var out []wheel
	for _, w := range pinned {
		if w.cuda && !cuda {
			continue
		}
		switch runtime.GOARCH {
		case "amd64":
			w.sha256 = w.amd64
		case "arm64":
			w.sha256 = w.arm64
		default:
			return nil, fmt.Errorf("there is no libtorch for %s; set GOFSDP_TORCH_DIR to one that is installed", runtime.GOARCH)
		}
		out = append(out, w)
	}
	return out, nil
}

// pipPlatforms lists the platform tags that the wheels carry: pip takes a list literally, it does not add the
// older ones by itself.
func pipPlatforms() []string {
	arch := "x86_64"
	if runtime.GOARCH == "arm64" {
		arch = "aarch64"
	}
	var tags []string
	for glibc := 28; glibc >= 5; glibc-- {
		tags = append(tags, fmt.Sprintf("manylinux_2_%d_%s", glibc, arch))
	}
	return append(tags, "manylinux2014_"+arch, "manylinux2010_"+arch, "manylinux1_"+arch)
}

// The libraries of the torch wheel that a machine without a GPU does not need.
var torchCUDALibraries = map[string]bool{
	"libtorch_cuda.so": true, "libtorch_cuda_linalg.so": true, "libtorch_nvshmem.so": true, "libcaffe2_nvrtc.so": true,
}

// wanted reports whether a file of a wheel is unpacked: headers, libraries and the operator schemas, no Python.
func wanted(name string, cuda bool) bool {
	switch {
	case strings.HasPrefix(name, "torch/include/"), strings.HasPrefix(name, "torch/share/cmake/"):
		return true
	case strings.HasPrefix(name, "torch/lib/"):
		base := path.Base(name)
		return strings.Contains(base, ".so") && base != "libtorch_python.so" && base != "libshm.so" &&
			(cuda || !torchCUDALibraries[base])
	case strings.HasPrefix(name, "torchgen/packaged/ATen/native/"):
		return strings.HasSuffix(name, ".yaml")
	case strings.HasPrefix(name, "nvidia/"):
		if strings.Contains(name, "/include/") {
			return true
		}
		// The profiler's host libraries are a hundred megabytes that only its own tools load.
		return strings.Contains(name, "/lib/") && strings.Contains(path.Base(name), ".so") &&
			(cuda || !strings.HasPrefix(path.Base(name), "libnvperf_"))
	}
	return false
}
