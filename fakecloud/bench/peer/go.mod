module github.com/ccmlab/ccmlab/fakecloud/bench/peer

go 1.26.0

require github.com/vmware/govmomi v0.54.0

require github.com/google/uuid v1.6.0 // indirect
