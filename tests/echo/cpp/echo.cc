// The cases of ../README.md with grpc++. The methods are called as generated stubs call theirs, with byte buffers.

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/codegen/sync_stream.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using grpc::ByteBuffer;
using grpc::ClientContext;
using grpc::Status;
using grpc::internal::RpcMethod;

namespace {

std::shared_ptr<grpc::Channel> channel;

std::string body(size_t size) {
    std::string data(size, '\0');
    for (size_t i = 0; i < size; i++) data[i] = static_cast<char>(i * 31 + i / 256);
    return data;
}

ByteBuffer packed(const std::string& data) {
    grpc::Slice slice(data);
    return ByteBuffer(&slice, 1);
}

std::string unpacked(const ByteBuffer& buffer) {
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) return "(no bytes)";
    std::string data;
    for (const auto& slice : slices) data.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    return data;
}

void hold(const std::string& name, bool truth, const std::string& what = "") {
    if (!truth) {
        std::fprintf(stderr, "%s: %s\n", name.c_str(), what.c_str());
        std::exit(1);
    }
    std::puts(name.c_str());
    std::fflush(stdout);
}

void limit(ClientContext* context, int ms = 30000) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(ms));
}

RpcMethod method(const char* path, RpcMethod::RpcType type) { return RpcMethod(path, type, channel); }

Status unary(const char* path, ClientContext* context, const std::string& want, std::string* got) {
    ByteBuffer request = packed(want), answer;
    Status status = grpc::internal::BlockingUnaryCall<ByteBuffer, ByteBuffer, ByteBuffer, ByteBuffer>(
        channel.get(), method(path, RpcMethod::NORMAL_RPC), context, request, &answer);
    if (status.ok()) *got = unpacked(answer);
    return status;
}

std::unique_ptr<grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>> both(ClientContext* context) {
    return std::unique_ptr<grpc::ClientReaderWriter<ByteBuffer, ByteBuffer>>(
        grpc::internal::ClientReaderWriterFactory<ByteBuffer, ByteBuffer>::Create(
            channel.get(), method("/whimbrel.test.Echo/Both", RpcMethod::BIDI_STREAMING), context));
}

std::string trailer(const ClientContext& context, const char* name) {
    const auto& all = context.GetServerTrailingMetadata();
    const auto found = all.find(name);
    return found == all.end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace

int main(int count, char** words) {
    channel = grpc::CreateChannel(words[1], grpc::InsecureChannelCredentials());
    for (int at = 3; at < count; at++) {
        const std::string word = words[at], want = body(std::stoul(word));
        {
            ClientContext context;
            limit(&context);
            std::string got;
            const Status status = unary("/whimbrel.test.Echo/Unary", &context, want, &got);
            hold("unary " + word, status.ok() && got == want, status.error_message());
        }
        const char* streams[][2] = {{"listed ", "/whimbrel.test.Echo/Listed"}, {"pulled ", "/whimbrel.test.Echo/Pulled"}};
        for (const auto& stream : streams) {
            ClientContext context;
            limit(&context);
            std::unique_ptr<grpc::ClientReader<ByteBuffer>> reader(
                grpc::internal::ClientReaderFactory<ByteBuffer>::Create(
                    channel.get(), method(stream[1], RpcMethod::SERVER_STREAMING), &context, packed(want)));
            ByteBuffer answer;
            int equal = 0;
            while (reader->Read(&answer)) equal += unpacked(answer) == want ? 1 : 10;
            const Status status = reader->Finish();
            hold(stream[0] + word, status.ok() && equal == 3, status.error_message());
        }
        {
            ClientContext context;
            limit(&context);
            ByteBuffer answer;
            std::unique_ptr<grpc::ClientWriter<ByteBuffer>> writer(
                grpc::internal::ClientWriterFactory<ByteBuffer>::Create(
                    channel.get(), method("/whimbrel.test.Echo/Gather", RpcMethod::CLIENT_STREAMING), &context, &answer));
            for (int i = 0; i < 3; i++) writer->Write(packed(want));
            writer->WritesDone();
            const Status status = writer->Finish();
            hold("client " + word, status.ok() && unpacked(answer) == want && trailer(context, "x-count") == "3",
                 status.error_message());
        }
        {
            ClientContext context;
            limit(&context);
            auto stream = both(&context);
            ByteBuffer answer;
            for (int i = 0; i < 3; i++) {
                stream->Write(packed(want));
                if (!stream->Read(&answer) || unpacked(answer) != want) hold("both " + word, false, "another answer");
            }
            stream->WritesDone();
            const bool more = stream->Read(&answer);
            const Status status = stream->Finish();
            hold("both " + word, status.ok() && !more, status.error_message());
        }
    }

    const std::string want = body(10);
    std::string got;
    {
        ClientContext context;
        limit(&context);
        const Status status = unary("/whimbrel.test.Echo/Fail", &context, want, &got);
        hold("status", status.error_code() == grpc::NOT_FOUND && trailer(context, "x-reason") == "none" &&
                           status.error_message() == "no such thing: 100 % \xc3\xbcmlaut & \"quotes\"",
             status.error_message());
    }
    {
        ClientContext context;
        limit(&context);
        const std::string bytes("\x00\xff\x80", 3);
        context.AddMetadata("x-echo", "hello");
        context.AddMetadata("x-echo-bin", bytes);
        const Status status = unary("/whimbrel.test.Echo/Unary", &context, want, &got);
        hold("metadata",
             status.ok() && trailer(context, "x-echo") == "hello" && trailer(context, "x-echo-bin") == bytes,
             status.error_message());
    }
    {
        std::vector<std::future<bool>> many;
        for (size_t i = 0; i < std::stoul(words[2]); i++)
            many.push_back(std::async(std::launch::async, [i] {
                ClientContext context;
                limit(&context);
                std::string mine;
                return unary("/whimbrel.test.Echo/Unary", &context, body(i), &mine).ok() && mine == body(i);
            }));
        bool all = true;
        for (auto& one : many) all &= one.get();
        hold("many", all);
    }
    {
        ClientContext context;
        limit(&context, 200);
        const Status status = unary("/whimbrel.test.Echo/Never", &context, want, &got);
        hold("deadline", status.error_code() == grpc::DEADLINE_EXCEEDED, status.error_message());
    }
    {
        ClientContext waiting, context;
        std::thread later([&waiting] {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            waiting.TryCancel();
        });
        const Status status = unary("/whimbrel.test.Echo/Never", &waiting, want, &got);
        later.join();
        auto stream = both(&context);
        ByteBuffer answer;
        stream->Write(packed(want));
        const bool first = stream->Read(&answer);
        context.TryCancel();
        const bool second = stream->Read(&answer);
        const Status end = stream->Finish();
        hold("cancel", status.error_code() == grpc::CANCELLED && first && !second && end.error_code() == grpc::CANCELLED,
             end.error_message());
    }
}
