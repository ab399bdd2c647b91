import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Reads rows of tables and predictions from {@code sanderling serve} over HTTP. It needs Java 11 and no library, and may
 * be used by several threads at once.
 */
public final class Sanderling {
    private static final String OCTETS = "application/octet-stream";
    private static final int HEAD_BYTES = 28;

    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final String url;
    private final String token;
    private final Duration timeout;

    /** A client of a server such as http://127.0.0.1:8500; the token may be null. */
    public Sanderling(String url, String token, Duration timeout) {
        this.url = url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
        this.token = token;
        this.timeout = timeout;
    }

    /** A refusal of the server. The HTTP statuses 503 and 504 may be tried again. */
    public static final class Refused extends IOException {
        private static final long serialVersionUID = 1;

        public final int status;

        Refused(int status, String text) {
            super(text + " (" + status + ")");
            this.status = status;
        }
    }

    /** Rows of a table, one per key or value, or pooled. */
    public static final class Rows {
        /** Version of the model that answered. */
        public final long version;
        public final int dim;
        /** The weights of each row; those of an absent row are 0. */
        public final float[][] weights;
        /** Places of the keys or values without a row, ascending. */
        public final int[] absent;

        /** Parses the bytes of an answer; docs/serving.md has their layout. */
        Rows(byte[] bytes) throws IOException {
            ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
            byte[] magic = new byte[4];
            if (bytes.length < HEAD_BYTES || !"SROW".equals(new String(get(buffer, magic), StandardCharsets.US_ASCII))) {
                throw new IOException("the answer has no rows; is the address that of sanderling serve?");
            }
            int dtype = buffer.getInt();
            int rows = buffer.getInt();
            dim = buffer.getInt();
            version = buffer.getLong();
            int missing = buffer.getInt();
            if (dtype != 0 || bytes.length != HEAD_BYTES + 4L * missing + 4L * rows * dim) {
                throw new IOException("the answer has an unexpected layout");
            }
            absent = new int[missing];
            for (int at = 0; at < missing; at++) {
                absent[at] = buffer.getInt();
            }
            weights = new float[rows][dim];
            for (float[] row : weights) {
                buffer.asFloatBuffer().get(row);
                buffer.position(buffer.position() + 4 * dim);
            }
        }

        private static byte[] get(ByteBuffer from, byte[] to) {
            from.get(to);
            return to;
        }
    }

    /**
     * Looks rows up by key. The options are parameters of docs/serving.md, such as model, version, pooling (sum or mean)
     * and lengths ("2,3").
     */
    public Rows rowsOfKeys(String table, long[] keys, Map<String, String> options)
            throws IOException, InterruptedException {
        ByteBuffer body = ByteBuffer.allocate(8 * keys.length).order(ByteOrder.LITTLE_ENDIAN);
        for (long key : keys) {
            body.putLong(key);
        }
        return rows(table, "keys", body.array(), options);
    }

    /** Looks rows up by the text of a feature, which becomes the key as in training. */
    public Rows rowsOfValues(String table, List<String> values, Map<String, String> options)
            throws IOException, InterruptedException {
        byte[][] texts = values.stream().map(value -> value.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        int length = 0;
        for (byte[] text : texts) {
            length += 4 + text.length;
        }
        ByteBuffer body = ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
        for (byte[] text : texts) {
            body.putInt(text.length).put(text);
        }
        return rows(table, "values", body.array(), options);
    }

    /** Scores rows in JSON, such as {@code [{"user":"u17","genres":["a","b"]}]}. */
    public float[] predict(String rowsJson) throws IOException, InterruptedException {
        byte[] body = ("{\"rows\":" + rowsJson + "}").getBytes(StandardCharsets.UTF_8);
        String reply = new String(post("/predict", "application/json", body), StandardCharsets.UTF_8);
        int start = reply.indexOf("\"scores\":[") + "\"scores\":[".length();
        String[] numbers = reply.substring(start, reply.indexOf(']', start)).split(",");
        float[] scores = new float[numbers[0].isEmpty() ? 0 : numbers.length];
        for (int at = 0; at < scores.length; at++) {
            scores[at] = Float.parseFloat(numbers[at]);
        }
        return scores;
    }

    private Rows rows(String table, String input, byte[] body, Map<String, String> options)
            throws IOException, InterruptedException {
        StringBuilder path = new StringBuilder("/tables/" + escaped(table) + "/rows?input=" + input);
        for (Map.Entry<String, String> option : new TreeMap<>(options).entrySet()) {
            path.append('&').append(option.getKey()).append('=').append(escaped(option.getValue()));
        }
        return new Rows(post(path.toString(), OCTETS, body));
    }

    private static String escaped(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    private byte[] post(String path, String kind, byte[] body) throws IOException, InterruptedException {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + path))
                .timeout(timeout)
                .header("Content-Type", kind)
                .header("Accept", kind)
                .POST(HttpRequest.BodyPublishers.ofByteArray(body));
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        HttpResponse<byte[]> response = http.send(request.build(), HttpResponse.BodyHandlers.ofByteArray());
        if (response.statusCode() != 200) {
            throw new Refused(response.statusCode(), new String(response.body(), StandardCharsets.UTF_8));
        }
        return response.body();
    }
}
