import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/**
 * Prints the rows of values, their sum, and the score of a row:
 * {@code java -cp classes Example http://127.0.0.1:8500 user '{"user":"u17","genres":"a"}' u17 u18}
 */
public final class Example {
    public static void main(String[] args) throws Exception {
        Sanderling client = new Sanderling(args[0], System.getenv("SANDERLING_TOKEN"), Duration.ofSeconds(10));
        List<String> values = Arrays.asList(args).subList(3, args.length);
        try {
            Sanderling.Rows rows = client.rowsOfValues(args[1], values, Map.of());
            Sanderling.Rows sum = client.rowsOfValues(args[1], values, Map.of("pooling", "sum"));
            float[] scores = client.predict("[" + args[2] + "]");
            System.out.println("version " + rows.version);
            System.out.println("absent " + shown(Arrays.toString(rows.absent)));
            for (float[] row : rows.weights) {
                System.out.println("row " + shown(Arrays.toString(row)));
            }
            System.out.println("sum " + shown(Arrays.toString(sum.weights[0])));
            System.out.println("score " + scores[0]);
        } catch (Sanderling.Refused refused) {
            System.err.println(refused.getMessage());
            System.exit(1);
        }
    }

    private static String shown(String list) {
        return list.substring(1, list.length() - 1).replace(",", "");
    }
}
