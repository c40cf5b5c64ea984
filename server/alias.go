package server

import (
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionalphapb "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	modelgatewaypb "github.com/loadmonitor/loadmonitor/gen/model_gateway/loadmonitor/v1"
)

// aliasFile names the description of the report service under its second name, which no generated file holds.
const aliasFile = "router/loadmonitor/v1/load_monitor.proto"

// registerReflection serves reflection in both versions that tools use, with the second name of the report service.
func registerReflection(g *grpc.Server) error {
	alias, err := aliasDescriptor()
	if err != nil {
		return err
	}
	files := new(protoregistry.Files)
	if err := files.RegisterFile(alias); err != nil {
		return fmt.Errorf("describe %s: %w", AliasServiceName, err)
	}
	opts := reflection.ServerOptions{Services: g, DescriptorResolver: aliasResolver{files}}
	reflectionpb.RegisterServerReflectionServer(g, reflection.NewServerV1(opts))
	reflectionalphapb.RegisterServerReflectionServer(g, reflection.NewServer(opts))
	return nil
}

// aliasDescriptor describes the report contract under the package name of the alias.
func aliasDescriptor() (protoreflect.FileDescriptor, error) {
	fd := protodesc.ToFileDescriptorProto(modelgatewaypb.File_model_gateway_loadmonitor_v1_load_monitor_proto)
	from := "." + fd.GetPackage() + "."
	pkg := strings.TrimSuffix(AliasServiceName, ".LoadMonitorService")
	to := "." + pkg + "."
	fd.Name, fd.Package = new(aliasFile), &pkg
	rename := func(s *string) {
		if s != nil {
			*s = strings.Replace(*s, from, to, 1)
		}
	}
	for _, m := range fd.GetMessageType() {
		for _, f := range m.GetField() {
			rename(f.TypeName)
		}
	}
	for _, s := range fd.GetService() {
		for _, m := range s.GetMethod() {
			rename(m.InputType)
			rename(m.OutputType)
		}
	}
	file, err := protodesc.NewFile(fd, protoregistry.GlobalFiles)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", AliasServiceName, err)
	}
	return file, nil
}

// aliasResolver finds what is in files, and everything else where generated code registers it.
type aliasResolver struct{ files *protoregistry.Files }

func (r aliasResolver) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if fd, err := r.files.FindFileByPath(path); err == nil {
		return fd, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

func (r aliasResolver) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := r.files.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}
