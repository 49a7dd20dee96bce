package main

import (
	_ "k8s.io/kubernetes/pkg/kubemark"
	_ "k8s.io/kubernetes/pkg/proxy"
	_ "k8s.io/kubernetes/pkg/kubelet/prober"
	_ "k8s.io/component-base/cli"
)

func main() {}
