// The cases of ../README.md with grpc-java over Netty.

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

public final class Echo {
    private static final Metadata.Key<String> COUNT = text("x-count"), ECHO = text("x-echo"), REASON = text("x-reason");
    private static final Metadata.Key<byte[]> BINARY = Metadata.Key.of("x-echo-bin", Metadata.BINARY_BYTE_MARSHALLER);

    private static Metadata.Key<String> text(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    private static final MethodDescriptor.Marshaller<byte[]> RAW = new MethodDescriptor.Marshaller<>() {
        @Override public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    };

    private static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.newBuilder(RAW, RAW).setType(type)
            .setFullMethodName("whimbrel.test.Echo/" + name).build();
    }

    private static byte[] body(int size) {
        byte[] data = new byte[size];
        for (int i = 0; i < size; i++) {
            data[i] = (byte) (i * 31 + i / 256);
        }
        return data;
    }

    private static void hold(String name, boolean truth, Object what) {
        if (!truth) {
            System.err.println(name + ": " + what);
            System.exit(1);
        }
        System.out.println(name);
    }

    private static CallOptions soon() {
        return CallOptions.DEFAULT.withDeadlineAfter(30, TimeUnit.SECONDS);
    }

    /** A stream both ways whose answers are taken one by one; an end is its status. */
    private static final class Stream extends ClientCall.Listener<byte[]> {
        final BlockingQueue<Object> answers = new LinkedBlockingQueue<>();
        final ClientCall<byte[], byte[]> call;
        Metadata trailers;

        Stream(Channel channel, MethodDescriptor<byte[], byte[]> method) {
            call = channel.newCall(method, soon());
            call.start(this, new Metadata());
            call.request(100);
        }

        @Override public void onMessage(byte[] message) {
            answers.add(message);
        }

        @Override public void onClose(Status status, Metadata trailers) {
            this.trailers = trailers;
            answers.add(status);
        }

        boolean next(byte[] want) throws InterruptedException {
            return answers.poll(30, TimeUnit.SECONDS) instanceof byte[] got && Arrays.equals(got, want);
        }

        Status.Code end() throws InterruptedException {
            return answers.poll(30, TimeUnit.SECONDS) instanceof Status status ? status.getCode() : null;
        }
    }

    public static void main(String[] words) throws Exception {
        int colon = words[0].lastIndexOf(':');
        ManagedChannel channel = NettyChannelBuilder
            .forAddress(words[0].substring(0, colon), Integer.parseInt(words[0].substring(colon + 1)))
            .usePlaintext().build();
        MethodDescriptor<byte[], byte[]> unary = method("Unary", MethodType.UNARY);
        MethodDescriptor<byte[], byte[]> both = method("Both", MethodType.BIDI_STREAMING);
        for (String word : Arrays.asList(words).subList(2, words.length)) {
            byte[] want = body(Integer.parseInt(word));
            hold("unary " + word, Arrays.equals(ClientCalls.blockingUnaryCall(channel, unary, soon(), want), want), "");
            for (String name : new String[] {"Listed", "Pulled"}) {
                Iterator<byte[]> answers = ClientCalls.blockingServerStreamingCall(
                    channel, method(name, MethodType.SERVER_STREAMING), soon(), want);
                int count = 0;
                while (answers.hasNext()) {
                    count += Arrays.equals(answers.next(), want) ? 1 : 10;
                }
                hold(name.toLowerCase() + " " + word, count == 3, count);
            }
            Stream gather = new Stream(channel, method("Gather", MethodType.CLIENT_STREAMING));
            for (int i = 0; i < 3; i++) {
                gather.call.sendMessage(want);
            }
            gather.call.halfClose();
            hold("client " + word, gather.next(want) && gather.end() == Status.Code.OK
                && "3".equals(gather.trailers.get(COUNT)), gather.trailers);
            Stream stream = new Stream(channel, both);
            for (int i = 0; i < 3; i++) {
                stream.call.sendMessage(want);
                if (!stream.next(want)) {
                    hold("both " + word, false, "another answer");
                }
            }
            stream.call.halfClose();
            hold("both " + word, stream.end() == Status.Code.OK, "no end");
        }

        byte[] want = body(10);
        try {
            ClientCalls.blockingUnaryCall(channel, method("Fail", MethodType.UNARY), soon(), want);
            hold("status", false, "no error");
        } catch (StatusRuntimeException error) {
            hold("status", error.getStatus().getCode() == Status.Code.NOT_FOUND
                && "no such thing: 100 % \u00fcmlaut & \"quotes\"".equals(error.getStatus().getDescription())
                && "none".equals(error.getTrailers().get(REASON)), error);
        }

        Metadata sent = new Metadata();
        byte[] bytes = {0, (byte) 255, (byte) 128};
        sent.put(ECHO, "hello");
        sent.put(BINARY, bytes);
        AtomicReference<Metadata> headers = new AtomicReference<>(), trailers = new AtomicReference<>();
        Channel telling = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(sent),
            MetadataUtils.newCaptureMetadataInterceptor(headers, trailers));
        ClientCalls.blockingUnaryCall(telling, unary, soon(), want);
        hold("metadata", "hello".equals(trailers.get().get(ECHO))
            && Arrays.equals(bytes, trailers.get().get(BINARY)), trailers);

        int calls = Integer.parseInt(words[1]);
        List<Future<byte[]>> many = new ArrayList<>();
        for (int i = 0; i < calls; i++) {
            many.add(ClientCalls.futureUnaryCall(channel.newCall(unary, soon()), body(i)));
        }
        for (int i = 0; i < calls; i++) {
            if (!Arrays.equals(many.get(i).get(), body(i))) {
                hold("many", false, "call " + i);
            }
        }
        hold("many", true, "");

        MethodDescriptor<byte[], byte[]> never = method("Never", MethodType.UNARY);
        try {
            CallOptions late = CallOptions.DEFAULT.withDeadlineAfter(200, TimeUnit.MILLISECONDS);
            ClientCalls.blockingUnaryCall(channel, never, late, want);
            hold("deadline", false, "no error");
        } catch (StatusRuntimeException error) {
            hold("deadline", error.getStatus().getCode() == Status.Code.DEADLINE_EXCEEDED, error);
        }

        Stream waiting = new Stream(channel, never);
        waiting.call.sendMessage(want);
        waiting.call.halfClose();
        Thread.sleep(100);
        waiting.call.cancel("enough", null);
        Stream stream = new Stream(channel, both);
        stream.call.sendMessage(want);
        boolean first = stream.next(want);
        stream.call.cancel("enough", null);
        hold("cancel", waiting.end() == Status.Code.CANCELLED && first && stream.end() == Status.Code.CANCELLED, "");
        channel.shutdown().awaitTermination(5, TimeUnit.SECONDS);
    }
}
