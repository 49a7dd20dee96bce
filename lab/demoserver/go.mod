// What cmd/hello serves for real and the hollow node of lab/kube simulates. Their two modules
// require this one; it requires none, so that it decides no version of theirs.
module github.com/ccmlab/ccmlab/lab/demoserver

go 1.26.0
